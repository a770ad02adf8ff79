"""Claims 12 to 14: figures 10 and 1 over the quanta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isnan

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm import fig1, fig10
from fairbench_studies.dlpm.claims.pairs import Pair
from fairbench_studies.dlpm.claims.places import CALLED, At, BySeed, by_seed, mean_over
from fairbench_studies.dlpm.claims.throughput import gains
from fairbench_studies.kit.outcomes import Outcome, Seen
from fairbench_studies.kit.parts import Claim, Part, number
from fairbench_studies.kit.tally import MOST
from fairbench_studies.kit.values import chosen

SAME_RATE = 0.02  # relative difference of throughputs that count as equal
PAPER_QUANTA = (2000, 40000)
INDICES = {"while all are active": "jain_index_paper_window", "over the window": "jain_index"}

Swept = Mapping[int, BySeed]
"""The runs of a swept quantum, ascending."""


def swept_over(
    cells: Sequence[SchedulerResults], quantum_of: Callable[[SchedulerResults], int | None]
) -> Swept:
    """Return the swept cells in order of ascending quantum."""
    found = {quantum_of(cell): by_seed(cell) for cell in cells}
    return {quantum: found[quantum] for quantum in sorted(q for q in found if q is not None)}


def judge_worker_quantum(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge that with Q^w from 2,000 to 40,000 throughput rises and Jain's index falls."""
    mine = chosen(cells, scenario="s2")
    least, most = PAPER_QUANTA
    swept = swept_over(mine, fig10.quantum_of)
    drops = [mean_over(swept[least], m) - mean_over(swept[most], m) for m in INDICES.values()]
    shown = _indices(swept[least], swept[most])
    return [
        *_rises(mine, "with a misbehaving client"),
        number("Jain's index falls by 0.01 to 0.06", drops[0], 0.01, 0.06, shown),
    ]


def _rises(mine: Sequence[SchedulerResults], where: str) -> list[Part]:
    """Judge that D2LPM's throughput rises with Q^w and ends above all others."""
    least, most = PAPER_QUANTA
    swept = swept_over(mine, fig10.quantum_of)
    others = {c.combined["scheduler"]: by_seed(c) for c in mine if fig10.quantum_of(c) is None}
    at = {str(quantum): swept[quantum] for quantum in PAPER_QUANTA} | others
    text = f"throughput rises from {least:,} to {most:,}, {where}"
    return [
        _part(text, gains(str(most), str(least)), at),
        *(
            _part(f"with Q^w {most:,} above {CALLED[name]}, {where}", gains(str(most), name), at)
            for name in others
        ),
    ]


def judge_all_well_behaved(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge that without a heavy client Jain's index is 1 under every quantum."""
    mine = chosen(cells, scenario="none")
    swept = swept_over(mine, fig10.quantum_of)
    active, window = (
        min(mean_over(runs, metric) for runs in swept.values()) for metric in INDICES.values()
    )
    ours = f"at least {_index(active)} while all are active, {_index(window)} over the window"
    return [
        number("Jain's index at least 0.99", active, 0.99, 1.0, ours),
        *_rises(mine, "all well-behaved"),
    ]


def judge_quantum(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge that a larger Q^u gives more throughput and less fairness."""
    swept = swept_over(cells, fig1.quantum_of)
    least, most = str(min(swept)), str(max(swept))
    at: dict[str, BySeed] = {str(quantum): runs for quantum, runs in swept.items()}
    steps = [gains(b, a)[0].seen(at) for a, b in pairwise(at)]
    kept = sum((step.value or 0.0) >= 1 - SAME_RATE for step in steps)
    lost = [
        Pair(name, metric, least, most, 0.0, is_ratio=False) for name, metric in INDICES.items()
    ]
    span = f"from {int(least):,} to {int(most):,}"
    ours = _indices(swept[int(least)], swept[int(most)])
    return [
        _part(f"throughput rises {span}", gains(most, least), at),
        Part(
            "throughput no less in most steps",
            Outcome.HOLDS if kept >= MOST * len(steps) else Outcome.REVERSED,
            f"in {kept} of {len(steps)}",
        ),
        _part(f"Jain's index falls {span}", lost, at, ours),
    ]


def _part(text: str, pairs: Sequence[Pair], at: At, ours: str = "") -> Part:
    """Return a part from several measures in one configuration, the paper's first."""
    first, *beside = (pair.seen(at) for pair in pairs)
    names = [pair.name for pair in pairs[1:]]
    others = {name: seen.outcome for name, seen in zip(names, beside, strict=True)}
    return Part(text, first.outcome, ours or _text(first), others)


def _text(seen: Seen) -> str:
    return "not known" if seen.value is None else f"{seen.bound}{seen.value:.2f}x"


def _indices(first: BySeed, last: BySeed) -> str:
    return ", ".join(
        f"{_index(mean_over(first, metric))} to {_index(mean_over(last, metric))} {name}"
        for name, metric in INDICES.items()
    )


def _index(value: float) -> str:
    return "undefined" if isnan(value) else f"{value:.3f}"


CLAIMS = (
    Claim(
        12,
        "a larger Q^w: throughput rises and stays above all others, Jain's index falls a little",
        "0.855 to 0.83 from 2,000 to 40,000",
        "[DLPM] §7.2",
        "fig10",
        judge_worker_quantum,
        "the index varies between seeds by more than the paper's drop, and the paper gives "
        "no rates",
    ),
    Claim(
        13,
        "with well-behaved clients only, Jain's index is 1 and throughput rises with Q^w too",
        "consistently 1; Fig. 10b",
        "[DLPM] Fig. 10",
        "fig10",
        judge_all_well_behaved,
        "programs arrive at random, so clients have different demands in a window under "
        "every scheduler",
    ),
    Claim(
        14,
        "a larger Q^u: more throughput, less fairness",
        "a new Pareto frontier",
        "[DLPM] §7.2",
        "fig1",
        judge_quantum,
        "a client's own requests are ordered by prefix, so its trees stay together even "
        "under a small quantum; the loss between clients depends on the number of clients "
        "that share the pool",
    ),
)
