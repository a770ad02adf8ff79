"""Predictions of serving runs from the requests that were sent, without reading the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairbench.hardware.timing import TimingProfile, perturbed
from fairbench.metrics.records import Flags
from fairbench.streams import stream
from fairbench_studies.validation.report import defined
from fairbench_studies.validation.serving.compare import (
    answered_tokens,
    check_steady,
    clients_of,
    groups,
    throughput_tok_s,
    tpot_p50_ms,
    trace_of,
    ttft_percentile_s,
)
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.replay import replay
from fairbench_studies.validation.serving.unanswered import rows_of, with_unanswered
from fairbench_studies.validation.windows import WEIGHTS, service_between

DRAWS = 8

THROUGHPUT, TIME_PER_TOKEN, FIRST_P50, FIRST_P99 = METRICS = (
    "throughput_tok_s",
    "tpot_p50_ms",
    "ttft_p50_s",
    "ttft_p99_s",
)
ROOM_S = {FIRST_P50: 0.1, FIRST_P99: 0.3}
"""The seconds by which predicted TTFT intervals are widened, besides the factors in ``FACTORS``.

The simulator models times below 0.1 s coarsely. Real servers sometimes pause for 0.3 s; timing
profiles contain no such pauses.
"""

FACTORS: dict[str, dict[str, float]] = {
    "measured": {THROUGHPUT: 1.2, TIME_PER_TOKEN: 1.35, FIRST_P50: 1.2, FIRST_P99: 1.7},
    "calibrated": {THROUGHPUT: 1.25, TIME_PER_TOKEN: 1.35, FIRST_P50: 1.35, FIRST_P99: 1.85},
    "derived": {THROUGHPUT: 1.25, TIME_PER_TOKEN: 1.35, FIRST_P50: 1.6, FIRST_P99: 1.75},
}
"""The factors that widen predicted intervals, for each profile grade and metric.

Each factor covers the simulation errors of 95% of the runs on the server with the largest errors.
The script ``tests/validate/measure_intervals.py`` prints the factors.
"""

MEANING: dict[str, Any] = {
    "meaning": (
        f"the range of {DRAWS + 1} simulations whose timing profiles are wrong by up to "
        "timing_error_pct, widened by the factor and the seconds by which simulated values were "
        "off on measured servers; not confidence intervals, because few servers were measured"
    ),
    "factors": FACTORS,
    "seconds": ROOM_S,
}
"""A description of predicted intervals, with the factors and seconds that widen the intervals."""

# Step times are assumed to be wrong by ``MEASURED_ERROR_PCT`` in timing profiles that were measured
# on a server, and by ``OPERATOR_ERROR_PCT`` in all other timing profiles.
MEASURED_ERROR_PCT, OPERATOR_ERROR_PCT = 5.0, 15.0


def predict(run: ServingRun, profile: TimingProfile) -> dict[str, Any]:
    """Predict a run's metrics, with intervals from ``DRAWS`` randomly changed timing profiles.

    The prediction uses only the arrivals, prompt lengths and output lengths of the run.
    """
    grade = grade_of(profile)
    error_pct = MEASURED_ERROR_PCT if grade == "measured" else OPERATOR_ERROR_PCT
    rng = stream(0, f"predict/{run.name}")
    drawn = [perturbed(profile, error_pct, rng) for _ in range(DRAWS)]
    sent, recorded = with_unanswered(run)
    replayed = [replay(sent, one) for one in (profile, *drawn)]
    for one in replayed:
        check_steady(one)
    central, *others = (metrics_of(one, recorded) for one in replayed)
    return {
        "name": run.name,
        "engine": run.engine,
        "timing_profile": profile.profile_id,
        "timing_error_pct": error_pct,
        "metrics": {
            name: _interval([value, *(other[name] for other in others)], *_widening(grade, name))
            for name, value in central.items()
        },
    }


def grade_of(profile: TimingProfile) -> str:
    """Return the grade of a timing profile: ``measured``, ``calibrated`` or ``derived``."""
    source = profile.profile_id.split("/")[3]
    for grade in ("measured", "calibrated"):
        if source.startswith(grade) or profile.grade.startswith(f"{grade}:"):
            return grade
    return "derived"


def _widening(grade: str, name: str) -> tuple[float, float]:
    metric = name.split("/")[0]
    if metric == "refused":
        return 1.0, 0.0
    # ``METRICS`` lacks clients' service rates; their safety factor is the factor for throughput.
    metric = metric if metric in METRICS else THROUGHPUT
    return FACTORS[grade][metric], ROOM_S.get(metric, 0.0)


def _interval(values: Sequence[float], factor: float, room: float) -> dict[str, float | None]:
    """Return the first value, and the range of values, extended by ``factor`` and ``room``."""
    low, high = float(np.min(values)) / factor - room, float(np.max(values)) * factor + room
    low = low if low != low else max(0.0, low)
    return {"simulated": defined(values[0]), "low": defined(low), "high": defined(high)}


def metrics_of(replayed: ServingRun, recorded: Flags) -> dict[str, float]:
    """Return the metrics of a replay or of a measured run, keyed by name.

    Args:
        replayed: The replay of a run, or the measured run itself.
        recorded: A mask of the requests that the measured record has, shape (n_requests,).
    """
    run = rows_of(replayed, recorded)
    found = {
        "throughput_tok_s": throughput_tok_s(replayed, answered_tokens(run)),
        "tpot_p50_ms": tpot_p50_ms(run),
        "refused": float((~run.served).sum()),
    }
    for group in groups(run):
        for percent in (50, 99):
            found[f"ttft_p{percent}_s/{group}"] = ttft_percentile_s(run, group, percent)
    trace, names = trace_of(run), clients_of(run)
    start_s, end_s = float(trace.req_time_s.min()), float(trace.req_time_s.max())
    service = service_between(trace, WEIGHTS, start_s, end_s)
    for client, tokens in service.items():
        found[f"service_rate_tok_s/{names[client]}"] = tokens / (end_s - start_s or 1.0)
    return found
