"""A fit of three costs of the measured server that no data sheet or timing profile contains.

The fit determines the time to start and merge a minibatch, the time that a running request adds to
each decode step, and the server's delay for HTTP and the tokenizer. The time per decode step is
fitted for each date of recording, because the hosts differed between dates. The cost of a prefilled
token is a published value. The rest of a decode step's time is derived from the GPU's data. The
fitted values are constants in the module ``replay``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.metrics.records import Floats
from fairbench_studies.kit.trace import Trace, throughput_tok_s
from fairbench_studies.validation.slora.measured import MeasuredRun
from fairbench_studies.validation.slora.recorded import Recorded
from fairbench_studies.validation.slora.replay import (
    ADDED_PROMPT_TOKENS,
    FITTED_PROFILE,
    FITTED_RUNS,
    FITTED_SCENARIOS,
    replay,
    server_limits,
    with_request_step,
)

# The fit tries all pairs of ``OVERHEADS_MS`` and ``STEPS_MS``. A finer grid of values would change
# simulated results by less than the difference between two measurements of a trace.
OVERHEADS_MS = (10.0, 14.0, 18.0)
STEPS_MS = (0.03, 0.04, 0.05, 0.09, 0.10, 0.11)


@dataclass(frozen=True, slots=True)
class Fit:
    """A pair of candidate costs (ms), with the simulation error in runs of the date ``recorded``.

    ``error`` is the root mean square of log(simulated value / measured value).
    """

    recorded: Recorded
    prefill_overhead_ms: float
    request_step_ms: float
    error: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted costs (ms) of the measured server; ``request_step_ms`` depends on a run's date."""

    prefill_overhead_ms: float
    request_step_ms: dict[Recorded, float]
    response_ms: float
    error: float


def fitted_runs(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs to which the server's costs are fitted.

    Raises DataError if ``runs`` contains no run in ``FITTED_RUNS``.
    """
    chosen = [run for run in runs if run.name in FITTED_RUNS]
    if not chosen:
        raise DataError(
            f"the fit needs a run of the scenarios {' and '.join(FITTED_SCENARIOS)}, but the "
            "FILE holds no such run"
        )
    return chosen


def candidates(runs: list[MeasuredRun]) -> Iterator[Fit]:
    """Yield the simulation error of each pair of candidate costs, for each recording date."""
    for date in sorted({run.recorded for run in runs}):
        among = [run for run in runs if run.recorded == date]
        for overhead_ms in OVERHEADS_MS:
            for step_ms in STEPS_MS:
                yield Fit(date, overhead_ms, step_ms, _error(among, overhead_ms, step_ms))


def best(runs: list[MeasuredRun], fits: list[Fit]) -> Calibration:
    """Return the server costs with which simulated values are nearest to measured values."""
    return min((_with(runs, fits, ms) for ms in OVERHEADS_MS), key=lambda one: one.error)


def _with(runs: list[MeasuredRun], fits: list[Fit], overhead_ms: float) -> Calibration:
    steps: dict[Recorded, float] = {}
    squares = 0.0
    for date in sorted({run.recorded for run in runs}):
        among = [f for f in fits if (f.recorded, f.prefill_overhead_ms) == (date, overhead_ms)]
        chosen = min(among, key=lambda one: one.error)
        steps[date] = chosen.request_step_ms
        squares += chosen.error**2 * sum(run.recorded == date for run in runs)
    error = float(np.sqrt(squares / len(runs)))
    return Calibration(overhead_ms, steps, _response_ms(runs, overhead_ms), error)


def _response_ms(runs: list[MeasuredRun], overhead_ms: float) -> float:
    """Return the lowest TTFT minus the time of its prefill and of starting a minibatch, in ms."""
    served = [run.trace.finished for run in runs]
    ttft_s = [run.trace.first_token_latency_s[mask] for run, mask in zip(runs, served, strict=True)]
    prompts = [run.trace.prompt_tokens[mask] for run, mask in zip(runs, served, strict=True)]
    least = int(np.argmin(np.concatenate(ttft_s)))
    tokens = int(np.concatenate(prompts)[least]) + ADDED_PROMPT_TOKENS
    rows = server_limits().prefill_rows(tokens)
    prefill_ms = load_profile(FITTED_PROFILE).prefill_ps([(0, tokens)], rows) / PS_PER_MS
    alone_ms = 1_000 * float(np.concatenate(ttft_s)[least])
    return max(0.0, float(round(alone_ms - prefill_ms - overhead_ms)))


def _error(runs: list[MeasuredRun], overhead_ms: float, step_ms: float) -> float:
    profile = with_request_step(load_profile(FITTED_PROFILE), step_ms)
    logs = []
    for run in runs:
        simulated = replay(run.trace, run.build_scheduler(), profile, server_limits(overhead_ms))
        logs.append(np.log(_features(simulated) / _features(run.trace)))
    return float(np.sqrt(np.mean(np.square(logs))))


def _features(trace: Trace) -> Floats:
    """Return a trace's throughput, and three percentiles of the time from first to last token."""
    decode_s = (trace.request_latency_s - trace.first_token_latency_s)[trace.finished]
    return np.array([throughput_tok_s(trace), *np.percentile(decode_s, (10, 50, 90))])
