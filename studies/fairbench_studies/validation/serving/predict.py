"""Predictions of serving runs from the sent requests, without reading measured results."""

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
MEANING: dict[str, Any] = {
    "meaning": (
        f"the range of {DRAWS + 1} simulations whose timing profiles are wrong by up to "
        "timing_error_pct; not confidence intervals, because the ranges leave out every other "
        "error of the model"
    ),
    "held": {
        "measured profiles": {
            "throughput_tok_s": "11 of 14",
            "tpot_p50_ms": "10 of 14",
            "ttft_p50_s": "8 of 17",
            "ttft_p99_s": "11 of 17",
        },
        "other profiles": {
            "throughput_tok_s": "101 of 103",
            "tpot_p50_ms": "99 of 103",
            "ttft_p50_s": "45 of 103",
            "ttft_p99_s": "62 of 103",
        },
    },
}
"""The meaning of the intervals, and the number of intervals with the measured value.

``tests/validate/measure_intervals.py`` counted 117 measured runs to which no profile was fitted.
"""

# A profile has these relative errors, overall and per term. The errors were found on runs to which
# the measured profile was not fitted; operator profiles were compared on the same runs.
MEASURED_ERROR_PCT, OPERATOR_ERROR_PCT = 5.0, 15.0


def predict(run: ServingRun, profile: TimingProfile) -> dict[str, Any]:
    """Return a run's metrics with intervals over ``DRAWS`` perturbed profiles.

    The prediction reads only arrivals, prompt lengths and output lengths of the run.
    """
    measured = profile.profile_id.split("/")[3].startswith("measured")
    error_pct = MEASURED_ERROR_PCT if measured else OPERATOR_ERROR_PCT
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
            name: _interval([value, *(other[name] for other in others)])
            for name, value in central.items()
        },
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the first value and the range of all values, or null if a value is undefined."""
    low, high = defined(float(np.min(values))), defined(float(np.max(values)))
    return {"simulated": defined(values[0]), "low": low, "high": high}


def metrics_of(replayed: ServingRun, recorded: Flags) -> dict[str, float]:
    """Return the metrics of a replay or of a measured run, by name of the metric.

    Args:
        replayed: The run.
        recorded: The requests that the record has, shape (n_requests,).
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
