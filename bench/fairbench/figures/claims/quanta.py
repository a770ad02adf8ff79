"""Claims 12 to 14: what figures 10 and 1 show over the quanta."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from fairbench.figures import fig1, fig10
from fairbench.figures.claims.claim import Claim, Finding, verdict
from fairbench.figures.values import chosen, mean_of
from fairbench.results.comparison import SchedulerResults

RATE, JAIN = "service_rate_tok_s", "jain_index"
SAME_RATE = 0.02  # of a throughput counts as equal
SAME_JAIN = 0.01
PAPER_QUANTA = (2000, 40000)


class Point(NamedTuple):
    """A quantum in tokens, and the throughput and Jain's index under it."""

    quantum: int
    rate: float
    jain: float


def points_over(
    cells: Sequence[SchedulerResults], quantum_of: Callable[[SchedulerResults], int | None]
) -> list[Point]:
    """The swept cells, by ascending quantum."""
    found = []
    for cell in cells:
        quantum, rate, jain = quantum_of(cell), mean_of(cell, RATE), mean_of(cell, JAIN)
        if quantum is not None and rate is not None and jain is not None:
            found.append(Point(quantum, rate, jain))
    return sorted(found)


def judge_worker_quantum(cells: Sequence[SchedulerResults]) -> Finding:
    """Q^w from 2,000 to 40,000: throughput rises above all others, Jain's index falls a little."""
    mine = chosen(cells, scenario="s2")
    swept = points_over(mine, fig10.quantum_of)
    first, last = (next(p for p in swept if p.quantum == quantum) for quantum in PAPER_QUANTA)
    within = [p for p in swept if first.quantum <= p.quantum <= last.quantum]
    others = [mean_of(cell, RATE) or 0.0 for cell in mine if fig10.quantum_of(cell) is None]
    rising = all(b.rate >= a.rate * (1 - SAME_RATE) for a, b in pairwise(within))
    return Finding(
        f"{first.rate:,.0f} to {last.rate:,.0f} tok/s, best other {max(others):,.0f}; Jain's index "
        f"{first.jain:.3f} to {last.jain:.3f}",
        verdict(
            shape=rising and last.rate > first.rate and last.rate >= max(others),
            quantity=0.01 <= first.jain - last.jain <= 0.06,
            opposite=last.rate < first.rate * (1 - SAME_RATE),
        ),
    )


def judge_all_well_behaved(cells: Sequence[SchedulerResults]) -> Finding:
    """Without a misbehaving client, Jain's index is 1 under every quantum."""
    least = min(p.jain for p in points_over(chosen(cells, scenario="none"), fig10.quantum_of))
    return Finding(
        f"at least {least:.3f}",
        verdict(shape=least >= 0.9, quantity=least >= 0.99, opposite=least < 0.8),
    )


def judge_quantum(cells: Sequence[SchedulerResults]) -> Finding:
    """A larger Q^u: more throughput, less fairness."""
    swept = points_over(cells, fig1.quantum_of)
    first, last = swept[0], swept[-1]
    steps = list(pairwise(swept))
    faster = sum(b.rate >= a.rate * (1 - SAME_RATE) for a, b in steps)
    less_fair = sum(b.jain <= a.jain + SAME_JAIN for a, b in steps)
    return Finding(
        f"Q^u {first.quantum:,} to {last.quantum:,}: {first.rate:,.0f} to {last.rate:,.0f} tok/s, "
        f"Jain's index {first.jain:.3f} to {last.jain:.3f}; of {len(steps)} steps {faster} lose no "
        f"throughput (to {SAME_RATE:.0%}), {less_fair} gain no fairness (to {SAME_JAIN:g})",
        verdict(
            shape=last.rate > first.rate * (1 + SAME_RATE)
            and last.jain < first.jain - SAME_JAIN
            and faster == less_fair == len(steps),
            opposite=last.rate < first.rate and last.jain > first.jain,
        ),
    )


CLAIMS = (
    Claim(
        12,
        "a larger Q^w: throughput rises and stays above all others, Jain's index falls a little",
        "0.855 to 0.83 from 2,000 to 40,000",
        "[DLPM] §7.2",
        "fig10",
        judge_worker_quantum,
        "the index depends on the seed by more than the paper's drop; it falls only beyond a "
        "quantum of 20,000",
    ),
    Claim(
        13,
        "with well-behaved clients only, Jain's index is 1",
        "consistently 1",
        "[DLPM] Fig. 10",
        "fig10",
        judge_all_well_behaved,
        "in one of three seeds every scheduler is below it, VTC included, since programs arrive "
        "at random; a larger Q^w adds to that",
    ),
    Claim(
        14,
        "a larger Q^u: more throughput, less fairness",
        "a new Pareto frontier",
        "[DLPM] §7.2",
        "fig1",
        judge_quantum,
        "fairness falls as it should, but even the smallest quantum has most of LPM's "
        "throughput: a client's own requests come in order of their prefix, so its trees stay "
        "together",
    ),
)
