"""Claims 5 and 6: Jain's index and the well-behaved clients' latency of figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, isnan, log
from statistics import fmean, median

from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.pairs import All, Outcome, Pair
from fairbench.figures.claims.places import CALLED, by_place
from fairbench.figures.claims.tally import MOST, Tally, found_by, tally
from fairbench.results.comparison import SchedulerResults

FAIREST_FIRST = ("vtc", "d2lpm", "preble", "lpm")
SAME = 0.005  # of Jain's index counts as equal


def order(name: str, metric: str) -> All:
    """VTC >= D2LPM > Preble > RR+LPM in Jain's index, called ``name``."""
    steps = [
        Pair(f"{CALLED[above]} over {CALLED[below]}", metric, above, below, 0.0, is_ratio=False)
        for above, below in pairwise(FAIREST_FIRST)
    ]
    equal = Pair(steps[0].name, metric, steps[0].above, steps[0].below, -SAME, is_ratio=False)
    return All(name, (equal, *steps[1:]))


ORDERS = (order("service window", "jain_index"), order("all active", "jain_index_paper_window"))

PAPER_MEANS = {"preble": 2.90, "lpm": 4.06, "vtc": 2.98}
MEAN_BAND = 0.4  # either way
LARGEST_BAND = (4.0, 12.0)
WAITS: Mapping[str, tuple[Pair, ...]] = {
    name: (
        Pair(f"P50 under {CALLED[name]}", "victim_p50_s", name, "d2lpm"),
        Pair(f"P99 under {CALLED[name]}", "victim_p99_s", name, "d2lpm"),
    )
    for name in PAPER_MEANS
}


def judge_jain(cells: Sequence[SchedulerResults]) -> Finding:
    """VTC >= D2LPM > Preble > RR+LPM, over the common window and over the paper's."""
    at = by_place(cells)
    tallies, verdicts, ours = [], {}, []
    for one in ORDERS:
        whole = tally(one, at)
        left_out = whole.where(Outcome.UNCONTENDED)
        counted = {place: at[place] for place in whole.seen if place not in left_out}
        steps = [tally(pair, counted) for pair in one.pairs]
        gaps = [median(_known(step) or [float("nan")]) for step in steps]
        tallies.append(whole)
        verdicts[one.name] = _of_order(whole, steps, gaps)
        parts = "; ".join(
            f"{step.name} {step.score}" + ("" if isnan(gap) else f", median gap {gap:+.3f}")
            for step, gap in zip(steps, gaps, strict=True)
        )
        ours.append(f"{one.name}: the order {whole.score}; {parts}")
    return found_by(tallies, verdicts, ". ".join(ours))


def _of_order(whole: Tally, steps: Sequence[Tally], gaps: Sequence[float]) -> Verdict:
    if not whole.counted:
        return Verdict.NOT_TESTABLE
    above_preble = steps[1]
    return verdict(
        shape=whole.holds >= MOST * whole.counted,
        quantity=gaps[0] < gaps[1],
        opposite=len(above_preble.where(Outcome.REVERSED)) >= MOST * whole.counted,
    )


def _known(one: Tally) -> list[float]:
    return [seen.value for seen in one.values.values() if seen.value is not None]


def judge_latency(cells: Sequence[SchedulerResults]) -> Finding:
    """Latency of the well-behaved under each other scheduler over that under D2LPM."""
    at = by_place(cells)
    found = {name: [tally(pair, at) for pair in pairs] for name, pairs in WAITS.items()}
    tallies = [one for several in found.values() for one in several]
    # Where D2LPM's own latency is only a lower bound, no factor is known.
    factors = {
        name: [(s.value, s.bound) for one in several for s in one.values.values() if s.bound != "<"]
        for name, several in found.items()
    }
    if not all(factors.values()):
        return Finding("no contended place", Verdict.NOT_TESTABLE)
    means = {name: exp(fmean(log(v) for v, _ in of if v)) for name, of in factors.items()}
    most = {name: max(v for v, _ in of if v) for name, of in factors.items()}
    ours = "; ".join(
        f"{CALLED[name]} {'at least ' if any(bound for _, bound in factors[name]) else ''}"
        f"{means[name]:.2f}x in the geometric mean, up to {most[name]:.2f}x, P50 longer "
        f"{found[name][0].score}, P99 {found[name][1].score}"
        for name in PAPER_MEANS
    )
    made = verdict(
        shape=min(means.values()) > 1 and means["lpm"] == max(means.values()),
        quantity=all(
            abs(means[name] / paper - 1) <= MEAN_BAND
            and LARGEST_BAND[0] <= most[name] <= LARGEST_BAND[1]
            for name, paper in PAPER_MEANS.items()
        ),
        opposite=max(means.values()) < 1,
    )
    return found_by(tallies, {"geometric mean": made}, ours)


CLAIMS = (
    Claim(
        5,
        "Jain's index: VTC >= D2LPM > Preble > RR+LPM",
        "D2LPM slightly below VTC, notably above Preble",
        "[DLPM] §6.2",
        "fig7",
        judge_jain,
        "the index is of the service that clients see, cached input included, of which VTC and "
        "D2LPM share out only what is computed; Preble and LPM differ little where all clients "
        "ask for much the same",
    ),
    Claim(
        6,
        "the well-behaved wait longer under Preble, RR+LPM and VTC than under D2LPM",
        "up to 7.18x, 9.55x, 7.96x; on average 2.90x, 4.06x, 2.98x",
        "[DLPM] §6.2",
        "fig7",
        judge_latency,
        "how long a starved client waits depends on how far the load is above capacity and on how "
        "long the run is, which the paper does not give",
    ),
)
