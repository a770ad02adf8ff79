"""Claims 5 and 6: Jain's index and the well-behaved clients' latency of figure 7."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from fairbench.figures.claims.claim import Claim, Finding, verdict
from fairbench.figures.claims.places import Ratio, by_place, indices, largest, ratios
from fairbench.results.comparison import SchedulerResults

FAIREST_FIRST = ("vtc", "d2lpm", "preble", "lpm")
MOST = 0.8  # of the places
SAME = 0.005  # of Jain's index counts as equal

LATENCIES = ("victim_p50_s", "victim_p99_s")
PAPER_MEANS = {"preble": 2.90, "lpm": 4.06, "vtc": 2.98}
MEAN_BAND = 0.4  # either way
LARGEST_BAND = (4.0, 12.0)


def judge_jain(cells: Sequence[SchedulerResults]) -> Finding:
    """VTC >= D2LPM > Preble > RR+LPM, in most places with all four."""
    at = [indices(place, "jain_index", FAIREST_FIRST) for place in by_place(cells).values()]
    known = [values for values in at if values is not None]
    ordered = sum(_ordered(values) for values in known) / len(known)
    by_scheduler = list(zip(*known, strict=True))
    gaps = [
        median(a - b for a, b in zip(fairer, other, strict=True))
        for fairer, other in pairwise(by_scheduler)
    ]
    above_preble = sum(values[1] > values[2] for values in known) / len(known)
    return Finding(
        f"the order holds in {ordered:.0%} of {len(known)} places; median gaps VTC - D2LPM "
        f"{gaps[0]:.3f}, D2LPM - Preble {gaps[1]:.3f}, Preble - LPM {gaps[2]:.3f}",
        verdict(
            shape=ordered >= MOST,
            quantity=gaps[0] < gaps[1],
            opposite=above_preble <= 1 - MOST,
        ),
    )


def _ordered(values: Sequence[float]) -> bool:
    vtc, d2lpm, preble, lpm = values
    return vtc >= d2lpm - SAME and d2lpm > preble - SAME and preble > lpm - SAME


def judge_latency(cells: Sequence[SchedulerResults]) -> Finding:
    """Latency of the well-behaved under each other scheduler over that under D2LPM."""
    found = {name: _latency_ratios(cells, name) for name in PAPER_MEANS}
    means = {name: fmean(ratio.value for ratio in of) for name, of in found.items()}
    most = {name: largest(of) for name, of in found.items()}
    return Finding(
        "; ".join(
            f"{name} {'at least ' if any(r.at_least for r in found[name]) else ''}"
            f"{means[name]:.2f}x on average, up to {most[name]}"
            for name in PAPER_MEANS
        ),
        verdict(
            shape=min(means.values()) > 1 and means["lpm"] == max(means.values()),
            quantity=all(
                abs(means[name] / paper - 1) <= MEAN_BAND
                and LARGEST_BAND[0] <= most[name].value <= LARGEST_BAND[1]
                for name, paper in PAPER_MEANS.items()
            ),
            opposite=max(means.values()) < 1,
        ),
    )


def _latency_ratios(cells: Sequence[SchedulerResults], name: str) -> list[Ratio]:
    return [ratio for metric in LATENCIES for ratio in ratios(cells, metric, name, "d2lpm")]


CLAIMS = (
    Claim(
        5,
        "Jain's index: VTC >= D2LPM > Preble > RR+LPM",
        "D2LPM slightly below VTC, notably above Preble",
        "[DLPM] §6.2",
        "fig7",
        judge_jain,
        "in judge s2 and tot s2 all four are nearly alike, and in long-qa D2LPM is above VTC, "
        "which shares out actual service and not the service rate that this index is of",
    ),
    Claim(
        6,
        "the well-behaved wait longer under Preble, RR+LPM and VTC than under D2LPM",
        "up to 7.18x, 9.55x, 7.96x; on average 2.90x, 4.06x, 2.98x",
        "[DLPM] §6.2",
        "fig7",
        judge_latency,
        "the extremes are of long-qa, where D2LPM answers within seconds what others queue for "
        "minutes; in trees VTC serves the well-behaved sooner than D2LPM does",
    ),
)
