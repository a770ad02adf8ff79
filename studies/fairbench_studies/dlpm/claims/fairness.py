"""Claims 5 and 6 of the DLPM paper (figure 7): Jain's index, and well-behaved clients' latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, geometric_mean, median

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.pairs import All, Pair, tally
from fairbench_studies.dlpm.claims.places import CALLED, PREBLES, by_place
from fairbench_studies.dlpm.claims.throughput import parts_apart, run_of
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part, number
from fairbench_studies.kit.tally import Tally, decided

FAIREST_FIRST = ("vtc", "d2lpm", "preble", "lpm")
SAME = 0.005  # values of Jain's index count as equal if they differ by less than this


def order(name: str, metric: str) -> All:
    """Return the pairs of schedulers to compare for the order VTC >= D2LPM > Preble > RR+LPM."""
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
MEAN_BAND = 0.4  # largest relative error at which a simulated mean still matches the paper
LARGEST_BAND = (4.0, 12.0)
GEOMETRIC, ARITHMETIC = "geometric mean", "arithmetic mean"
MEANS: Mapping[str, Callable[[Sequence[float]], float]] = {
    GEOMETRIC: geometric_mean,
    ARITHMETIC: fmean,
}
"""The two kinds of mean over configurations that the paper's "on average" may mean."""
BY_PLACE, BY_MEDIAN = "by configuration", "by medians"
WAITS: Mapping[str, tuple[Pair, ...]] = {
    name: (
        Pair(f"P50 under {CALLED[name]}", "victim_p50_s", name, "d2lpm"),
        Pair(f"P99 under {CALLED[name]}", "victim_p99_s", name, "d2lpm"),
    )
    for name in PAPER_MEANS
}


def judge_jain(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether Jain's index has the paper's order VTC >= D2LPM > Preble > RR+LPM.

    In the paper, Jain's index covers the time in which all clients are active.
    """
    at = by_place(cells)
    steps = [("vtc", "d2lpm", -SAME)]
    for preble in run_of(PREBLES, cells):
        steps += [("d2lpm", preble, 0.0), (preble, "lpm", 0.0)]
    parts, found = [], {}
    for above, below, flip in steps:
        tallies = [
            tally(Pair(name, metric, above, below, flip, is_ratio=False), at)
            for name, metric in INDICES
        ]
        found[above, below] = tallies
        text = f"{CALLED[above]} {'at least' if flip else 'above'} {CALLED[below]}"
        parts += parts_apart(text, tallies, _median_gap)
    to_vtc = found["vtc", "d2lpm"]
    nearer = [
        _nearer(CALLED[preble], to_vtc, tallies)
        for (first, preble), tallies in found.items()
        if first == "d2lpm"
    ]
    return [*parts, *nearer]


def _median_gap(tallies: Sequence[Tally]) -> str:
    for one in tallies:
        if gaps := _known(one):
            by = "" if one is tallies[0] else f" by {one.name}"
            return f"median gap{by} {median(gaps):+.3f}"
    return ""


def _nearer(preble: str, to_vtc: Sequence[Tally], to_preble: Sequence[Tally]) -> Part:
    """Judge whether D2LPM's Jain's index is nearer to VTC's index than to Preble's.

    A first verdict counts the configurations in which D2LPM's index is nearer to VTC's. A second
    verdict compares the median distance of D2LPM's index from VTC's with the median distance from
    Preble's.
    """
    both = [(a, b) for a, b in zip(to_vtc, to_preble, strict=True) if a.values and b.values]
    text = f"D2LPM nearer to VTC than to {preble}, by configuration"
    if not both:
        return Part(text, Outcome.UNCONTENDED, "no value is known")
    vtc, other = both[0]
    places = [place for place in other.values if place in vtc.values]
    if not places:
        return Part(text, Outcome.UNCONTENDED, "no configuration is known for both")
    gaps = [(vtc.values[place].value or 0.0, other.values[place].value or 0.0) for place in places]
    near = sum(abs(first) < second for first, second in gaps)
    first, second = (median(column) for column in zip(*gaps, strict=True))
    by = "" if vtc is to_vtc[0] else f" by {vtc.name}"
    ours = f"in {near} of {len(gaps)}{by}; medians {first:.3f} from VTC, {second:.3f} from {preble}"
    by_median = Outcome.HOLDS if first < second else Outcome.REVERSED
    outcome = decided(near, len(gaps))
    return Part(text, outcome, ours, under={BY_PLACE: outcome, BY_MEDIAN: by_median})


def _known(one: Tally) -> list[float]:
    return [seen.value for seen in one.values.values() if seen.value is not None]


def judge_latency(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge how much longer well-behaved clients wait under each scheduler than under D2LPM."""
    at = by_place(cells)
    names = run_of(PAPER_MEANS, cells)
    found = {name: [tally(pair, at) for pair in WAITS[name]] for name in names}
    parts = [
        part
        for name in names
        for part in parts_apart(f"they wait longer under {CALLED[name]}", found[name], lambda _: "")
    ]
    # If D2LPM's latency is only a lower bound, ratios to D2LPM's latency are unknown.
    factors = {
        name: [
            s.value for one in several for s in one.values.values() if s.bound != "<" and s.value
        ]
        for name, several in found.items()
    }
    factors = {name: of for name, of in factors.items() if of}
    if "lpm" in factors:
        parts.append(_longest(factors))
    for name, of in factors.items():
        parts.append(_mean_wait(name, of))
        most, text = max(of), f"{CALLED[name]}: up to {PAPER_LARGEST[name]}x (4 to 12)"
        parts.append(number(text, most, *LARGEST_BAND, f"{most:.2f}x"))
    return parts


def _longest(factors: Mapping[str, Sequence[float]]) -> Part:
    under, shown = {}, []
    for kind, mean in MEANS.items():
        means = {name: mean(of) for name, of in factors.items()}
        worst = max(means, key=lambda name: means[name])
        under[kind] = Outcome.HOLDS if worst == "lpm" else Outcome.REVERSED
        listed = ", ".join(f"{CALLED[name]} {value:.2f}x" for name, value in means.items())
        shown.append(f"{kind}s: {listed}")
    return Part("RR+LPM the longest on average", under[GEOMETRIC], "; ".join(shown), under=under)


def _mean_wait(name: str, factors: Sequence[float]) -> Part:
    paper = PAPER_MEANS[name]
    low, high = paper * (1 - MEAN_BAND), paper * (1 + MEAN_BAND)
    text = f"{CALLED[name]}: on average {paper:.2f}x (within 40%)"
    means = {kind: mean(factors) for kind, mean in MEANS.items()}
    ours = ", ".join(f"{value:.2f}x ({kind})" for kind, value in means.items())
    one = number(text, means[GEOMETRIC], low, high, ours)
    return replace(
        one,
        under={kind: number(text, value, low, high, "").outcome for kind, value in means.items()},
    )


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
