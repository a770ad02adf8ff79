"""Predictions of serving runs from their requests alone, without the results."""

from __future__ import annotations

from typing import Any

from fairbench.hardware.timing import TimingProfile, perturbed
from fairbench.metrics.records import Flags
from fairbench.streams import stream
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
# Error of a profile, overall and in each term: the fitted profile's error on runs that it was not
# fitted to, and the operator profiles' error on the same runs.
MEASURED_ERROR_PCT, OPERATOR_ERROR_PCT = 5.0, 15.0


def predict(run: ServingRun, profile: TimingProfile) -> dict[str, Any]:
    """Return a run's metrics with intervals over ``DRAWS`` perturbed profiles.

    Only the sent traffic of the run is read: arrivals, prompt and output lengths.
    """
    measured = profile.profile_id.split("/")[3].startswith("measured")
    error_pct = MEASURED_ERROR_PCT if measured else OPERATOR_ERROR_PCT
    rng = stream(0, f"predict/{run.name}")
    drawn = [perturbed(profile, error_pct, rng) for _ in range(DRAWS)]
    sent, recorded = with_unanswered(run)
    replayed = [replay(sent, one) for one in (profile, *drawn)]
    for one in replayed:
        check_steady(one)
    central, *others = (_metrics(one, recorded) for one in replayed)
    return {
        "name": run.name,
        "engine": run.engine,
        "timing_profile": profile.profile_id,
        "timing_error_pct": error_pct,
        "metrics": {
            name: {
                "simulated": value,
                "low": min(value, *(other[name] for other in others)),
                "high": max(value, *(other[name] for other in others)),
            }
            for name, value in central.items()
        },
    }


def _metrics(replayed: ServingRun, recorded: Flags) -> dict[str, float]:
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
