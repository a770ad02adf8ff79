"""Claims 5 and 6: Jain's index and the well-behaved clients' latency of figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, isnan, log, nan
from statistics import fmean, median

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.pairs import All, Pair, tally
from fairbench_studies.dlpm.claims.places import CALLED, PREBLES, by_place
from fairbench_studies.dlpm.claims.throughput import run_of
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part, number
from fairbench_studies.kit.tally import Tally, part_of

FAIREST_FIRST = ("vtc", "d2lpm", "preble", "lpm")
SAME = 0.005  # smaller differences of Jain's index count as equal


def order(name: str, metric: str) -> All:
    """Return the order VTC >= D2LPM > Preble > RR+LPM in Jain's index."""
    steps = [
        Pair(f"{CALLED[above]} over {CALLED[below]}", metric, above, below, 0.0, is_ratio=False)
        for above, below in pairwise(FAIREST_FIRST)
    ]
    equal = Pair(steps[0].name, metric, steps[0].above, steps[0].below, -SAME, is_ratio=False)
    return All(name, (equal, *steps[1:]))


INDICES = (("all active", "jain_index_paper_window"), ("service window", "jain_index"))
ORDERS = tuple(order(name, metric) for name, metric in INDICES)

PAPER_MEANS = {"preble": 2.90, "preble-code": 2.90, "lpm": 4.06, "vtc": 2.98}
PAPER_LARGEST = {"preble": 7.18, "preble-code": 7.18, "lpm": 9.55, "vtc": 7.96}
MEAN_BAND = 0.4  # in either direction
LARGEST_BAND = (4.0, 12.0)
WAITS: Mapping[str, tuple[Pair, ...]] = {
    name: (
        Pair(f"P50 under {CALLED[name]}", "victim_p50_s", name, "d2lpm"),
        Pair(f"P99 under {CALLED[name]}", "victim_p99_s", name, "d2lpm"),
    )
    for name in PAPER_MEANS
}


def judge_jain(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge VTC >= D2LPM > Preble > RR+LPM step by step, while all clients are active.

    Jain's index over the common window is reported, too. Over a whole run of a fixed set of
    programs, the index is the same under every scheduler.
    """
    at = by_place(cells)
    steps = [("vtc", "d2lpm", -SAME)]
    for preble in run_of(PREBLES, cells):
        steps += [("d2lpm", preble, 0.0), (preble, "lpm", 0.0)]
    parts, gaps = [], {}
    for above, below, flip in steps:
        tallies = [
            tally(Pair(name, metric, above, below, flip, is_ratio=False), at)
            for name, metric in INDICES
        ]
        gap = gaps[above, below] = median(_known(tallies[0]) or [nan])
        text = f"{CALLED[above]} {'at least' if flip else 'above'} {CALLED[below]}"
        parts.append(part_of(text, tallies, "" if isnan(gap) else f"median gap {gap:+.3f}"))
    return [*parts, *_slightly(gaps)]


def _slightly(gaps: Mapping[tuple[str, str], float]) -> list[Part]:
    """Judge that D2LPM is slightly below VTC, and clearly above both Prebles."""
    below_vtc = gaps["vtc", "d2lpm"]
    return [
        number(
            f"D2LPM nearer to VTC than to {CALLED[preble]}",
            above - below_vtc,
            0.0,
            1.0,
            f"{below_vtc:.3f} from VTC, {above:.3f} from {CALLED[preble]}",
        )
        for (first, preble), above in gaps.items()
        if first == "d2lpm"
    ]


def _known(one: Tally) -> list[float]:
    return [seen.value for seen in one.values.values() if seen.value is not None]


def judge_latency(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge the latency of well-behaved clients relative to that under D2LPM."""
    at = by_place(cells)
    names = run_of(PAPER_MEANS, cells)
    found = {name: [tally(pair, at) for pair in WAITS[name]] for name in names}
    parts = [part_of(f"they wait longer under {CALLED[name]}", found[name]) for name in names]
    # No factor is known if D2LPM's own latency is only a lower bound.
    factors = {
        name: [
            s.value for one in several for s in one.values.values() if s.bound != "<" and s.value
        ]
        for name, several in found.items()
    }
    means = {name: exp(fmean(map(log, of))) for name, of in factors.items() if of}
    if "lpm" in means:
        worst = max(means, key=lambda name: means[name])
        shown = ", ".join(f"{CALLED[name]} {mean:.2f}x" for name, mean in means.items())
        outcome = Outcome.HOLDS if worst == "lpm" else Outcome.REVERSED
        parts.append(Part("RR+LPM the longest on average", outcome, f"geometric means: {shown}"))
    for name, mean in means.items():
        paper = PAPER_MEANS[name]
        low, high = paper * (1 - MEAN_BAND), paper * (1 + MEAN_BAND)
        text = f"{CALLED[name]}: on average {paper:.2f}x (within 40%)"
        parts.append(number(text, mean, low, high, f"{mean:.2f}x"))
        most, text = max(factors[name]), f"{CALLED[name]}: up to {PAPER_LARGEST[name]}x (4 to 12)"
        parts.append(number(text, most, *LARGEST_BAND, f"{most:.2f}x"))
    return parts


CLAIMS = (
    Claim(
        5,
        "Jain's index: VTC >= D2LPM > Preble > RR+LPM",
        "D2LPM slightly below VTC, notably above Preble",
        "[DLPM] §6.2",
        "fig7",
        judge_jain,
        "the index counts cached input, but VTC and D2LPM equalise computed service only; "
        "Preble and LPM differ little if all clients have similar demands",
    ),
    Claim(
        6,
        "well-behaved clients wait longer under Preble, RR+LPM and VTC than under D2LPM",
        "up to 7.18x, 9.55x, 7.96x; on average 2.90x, 4.06x, 2.98x",
        "[DLPM] §6.2",
        "fig7",
        judge_latency,
        "the wait of a starved client depends on the overload and on the length of the run, "
        "and the paper gives neither",
    ),
)
