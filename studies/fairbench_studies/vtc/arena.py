"""Claims 25 and 26: rate limits, and service differences, on the Arena trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench_studies.kit.claim import Finding, verdict
from fairbench_studies.kit.trace import throughput_tok_s
from fairbench_studies.vtc.artifact import differences
from fairbench_studies.vtc.curves import output_rate
from fairbench_studies.vtc.experiments import ARENA, RPM_LIMITS
from fairbench_studies.vtc.measures import listed
from fairbench_studies.vtc.store import Results

MEASURED_RPM = {5: 340, 10: 532, 15: 626, 20: 694, 30: 747}
MEASURED_VTC = 779


def judge_limits(results: Results) -> Finding:
    """Judge whether a rate limit costs throughput, and less the higher it is."""
    vtc = throughput_tok_s(results.traces[f"{ARENA} vtc"])
    limited = [throughput_tok_s(results.traces[f"{ARENA} rpm {limit}"]) for limit in RPM_LIMITS]
    refused = [results.traces[f"{ARENA} rpm {limit}"].refused for limit in RPM_LIMITS]
    outputs = (
        output_rate(results.traces[f"{ARENA} rpm 5"]),
        output_rate(results.traces[f"{ARENA} vtc"]),
    )
    near = [
        abs(one / vtc - MEASURED_RPM[limit] / MEASURED_VTC) <= 0.08
        for limit, one in zip(RPM_LIMITS, limited, strict=True)
    ]
    return Finding(
        f"{listed(limited)} tok/s at {listed(RPM_LIMITS)}, {listed(refused)} refused; VTC "
        f"{vtc:.0f}; output tokens at 5 a minute {outputs[0]:.0f}, VTC {outputs[1]:.0f}",
        verdict(shape=limited == sorted(limited) and limited[-1] < vtc, quantity=all(near)),
    )


class Row(NamedTuple):
    """The name of a run, with the measured mean and variance."""

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


def judge_arena(results: Results) -> Finding:
    """Judge the ranking by mean difference and by variance."""
    found = {name: differences(results.traces[run]) for name, (run, *_) in TABLE.items()}
    same = [
        _same_order(
            [getattr(one, key) for one in found.values()],
            [getattr(row, key) for row in TABLE.values()],
        )
        for key in ("mean", "variance")
    ]
    near = all(abs(found[name].mean / row.mean - 1) <= 0.25 for name, row in TABLE.items())
    return Finding(
        "; ".join(
            f"{name} {one.largest:.0f}/{one.mean:.0f}/{one.variance:.0f}"
            for name, one in found.items()
        )
        + f" (largest/mean/variance); in order {100 * same[0]:.0f}% of pairs by mean, "
        f"{100 * same[1]:.0f}% by variance",
        verdict(shape=min(same) == 1, quantity=near),
    )


def _same_order(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the fraction of pairs that both sequences rank in the same order."""
    pairs = [(a, b) for a in range(len(ours)) for b in range(a)]
    return float(np.mean([(ours[a] > ours[b]) == (theirs[a] > theirs[b]) for a, b in pairs]))
