"""Claims 25 and 26 on the Arena trace: the cost of rate limits, and differences in service."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from fairbench_studies.kit.parts import Part, mean_within, rising
from fairbench_studies.kit.trace import throughput_tok_s
from fairbench_studies.vtc.artifact import Differences, differences
from fairbench_studies.vtc.experiments import ARENA, RPM_LIMITS
from fairbench_studies.vtc.measures import by_seed, listed
from fairbench_studies.vtc.store import Seeds

MEASURED_RPM = {5: 340, 10: 532, 15: 626, 20: 694, 30: 747}
MEASURED_VTC = 779


def judge_limits(seeds: Seeds) -> list[Part]:
    """Judge whether rate limits lower throughput, and whether low limits lower throughput more."""
    vtc = by_seed(seeds, f"{ARENA} vtc", "throughput", throughput_tok_s)
    limited = [
        by_seed(seeds, f"{ARENA} rpm {limit}", "throughput", throughput_tok_s)
        for limit in RPM_LIMITS
    ]
    refused = [
        fmean(by_seed(seeds, f"{ARENA} rpm {n}", "refused", lambda one: one.refused))
        for n in RPM_LIMITS
    ]
    apart = [
        max(
            abs(one / whole - MEASURED_RPM[limit] / MEASURED_VTC)
            for limit, one in zip(RPM_LIMITS, rates, strict=True)
        )
        for whole, rates in zip(vtc, zip(*limited, strict=True), strict=True)
    ]
    shown = f"{listed([fmean(one) for one in limited])} tok/s, {listed(refused)} refused"
    share = "each limit's fraction of VTC's is as measured (within 8 points)"
    return [
        rising("throughput rises with the limit", limited, shown),
        rising("it stays below VTC's", [limited[-1], vtc], "{:.0f} tok/s, VTC {:.0f}"),
        mean_within(share, apart, 0, 0.08, "at most {:.3f} off"),
    ]


class Row(NamedTuple):
    """A run's name, and the measured mean and variance of clients' service differences."""

    run: str
    mean: float
    variance: float


TABLE = {
    "FCFS": Row(f"{ARENA} fcfs", 434, 32_112),
    "LCF": Row(f"{ARENA} lcf", 324, 29_089),
    "VTC": Row(f"{ARENA} vtc", 252, 6_549),
    "average": Row(f"{ARENA} average", 240, 5_322),
    "oracle": Row(f"{ARENA} oracle", 228, 4_476),
    "RPM 5": Row(f"{ARENA} rpm 5", 84, 1_021),
    "RPM 20": Row(f"{ARENA} rpm 20", 196, 7_450),
}


def judge_arena(seeds: Seeds) -> list[Part]:
    """Judge the mean service difference of each run, and the runs' order by mean and variance."""
    found = {
        name: [Differences(*one) for one in by_seed(seeds, row.run, "differences", differences)]
        for name, row in TABLE.items()
    }
    parts = []
    for key in ("mean", "variance"):
        values = {name: [getattr(one, key) for one in of] for name, of in found.items()}
        order = sorted(TABLE, key=lambda name: getattr(TABLE[name], key))
        for low, high in pairwise(order):
            sides = [values[low], values[high]]
            parts.append(rising(f"{key}: {high} above {low}", sides, "{1:,.0f}, {0:,.0f}"))
    for name, row in TABLE.items():
        means = [one.mean for one in found[name]]
        text = f"{name}: a mean of {row.mean} (within 25%)"
        parts.append(mean_within(text, means, 0.75 * row.mean, 1.25 * row.mean, "{:.0f}"))
    return parts
