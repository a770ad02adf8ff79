"""Finds the two constants of the measured server that no data sheet gives.

Both are about prefill, which the derived A10G profile only estimates: its time per token ``c_T``,
and what a minibatch costs beyond its tokens. Decode is left as derived. The result is frozen in
the profile ``FITTED_PROFILE`` and in ``replay.PREFILL_OVERHEAD_MS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import PS_PER_MS, TimingProfile
from fairbench.metrics.records import Floats
from fairbench.metrics.trace import Trace, throughput_tok_s
from fairbench.validate.measured import MeasuredRun, build_scheduler
from fairbench.validate.replay import ADDED_PROMPT_TOKENS, FITTED_SCENARIOS, replay, server_limits

DERIVED_PROFILE = "a10g-24gb/llama-2-7b/tp1/sglang-e2e"
# Finer steps would be less than what two runs of one trace differ by.
CANDIDATES_C_T_MS = tuple(round(0.17 + 0.01 * step, 2) for step in range(12))


@dataclass(frozen=True, slots=True)
class Fit:
    """``error`` is the root mean square of the logarithms of simulated over measured."""

    c_t_ms: float
    prefill_overhead_ms: float
    error: float


def fitted_runs(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """The runs that may be fitted to. Raises DataError if there are none."""
    chosen = [run for run in runs if run.scenario in FITTED_SCENARIOS]
    if not chosen:
        raise DataError(f"no run of the scenarios {' and '.join(FITTED_SCENARIOS)} to fit to")
    return chosen


def candidates(runs: list[MeasuredRun]) -> Iterator[Fit]:
    """Every ``c_T`` with the overhead that goes with it, and how far the runs are then off.

    The two are tied by the least time to first token in any of the runs: that of a request alone
    on an idle server.
    """
    derived, alone_s, tokens = load_profile(DERIVED_PROFILE), *_alone(runs)
    for c_t_ms in CANDIDATES_C_T_MS:
        profile = replace(derived, coefficients_ms={**derived.coefficients_ms, "c_T": c_t_ms})
        prefill_ms = profile.prefill_ps([(0, tokens)]) / PS_PER_MS
        overhead_ms = max(0.0, float(round(1_000 * alone_s - prefill_ms)))
        yield Fit(c_t_ms, overhead_ms, _error(runs, profile, overhead_ms))


def _alone(runs: list[MeasuredRun]) -> tuple[float, int]:
    """The least time to first token, and the tokens that were prefilled in it."""
    served = [run.trace.finished for run in runs]
    ttft_s = [run.trace.first_token_latency_s[mask] for run, mask in zip(runs, served, strict=True)]
    prompts = [run.trace.prompt_tokens[mask] for run, mask in zip(runs, served, strict=True)]
    least = int(np.argmin(np.concatenate(ttft_s)))
    tokens = int(np.concatenate(prompts)[least]) + ADDED_PROMPT_TOKENS
    return float(np.concatenate(ttft_s)[least]), tokens


def _error(runs: list[MeasuredRun], profile: TimingProfile, overhead_ms: float) -> float:
    logs = []
    for run in runs:
        scheduler, limits = build_scheduler(run.scheduler), server_limits(overhead_ms)
        simulated = replay(run.trace, scheduler, profile, limits)
        logs.append(np.log(_features(simulated) / _features(run.trace)))
    return float(np.sqrt(np.mean(np.square(logs))))


def _features(trace: Trace) -> Floats:
    """Throughput, and low, middle and high times from the first token to the last.

    Who decodes beside a large minibatch waits for it, who was in it does not: so the spread of
    these times tells what a prefilled token costs.
    """
    decode_s = (trace.request_latency_s - trace.first_token_latency_s)[trace.finished]
    return np.array([throughput_tok_s(trace), *np.percentile(decode_s, (10, 50, 90))])
