"""The comparison of a measured serving run with its replay: values, errors and targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbench.errors import DataError
from fairbench.metrics.records import Flags
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.report import LONG_TTFT_S
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.prompts import refused_by_length, requests_of
from fairbench_studies.validation.windows import TTFT, WEIGHTS, Window, windows

# ``RATE_TARGET_PCT`` is the largest accepted error of simulated throughput, time per output token
# and clients' service rates.
RATE_TARGET_PCT = 5.0
# ``P50_TARGET_PCT`` and ``P99_TARGET_PCT`` are the largest accepted errors of the simulated P50 and
# P99 TTFT if the measured TTFT exceeds ``LONG_TTFT_S``.
P50_TARGET_PCT, P99_TARGET_PCT = 20.0, 30.0
JAIN_TARGET = 0.02
REFUSED_TARGET = 0.01  # largest accepted error of simulated refusals, as a fraction of requests


@dataclass(frozen=True, slots=True)
class ServingComparison:
    """A measured run, and its simulation with the timing profile ``profile``."""

    name: str
    engine: str
    profile: str
    fitted: bool
    requests: int
    throughput: Pair
    tpot_p50_ms: Pair
    ttft: tuple[TTFT, ...]
    refused: Pair
    windows: tuple[Window, ...]

    @property
    def misses(self) -> list[str]:
        """The metrics whose simulation error exceeds the target, each with its error."""
        return list(_misses(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        return {
            "name": self.name,
            "engine": self.engine,
            "timing_profile": self.profile,
            "fitted": self.fitted,
            "num_requests": self.requests,
            "throughput_error_pct": self.throughput.error_pct,
            "throughput_tok_s": self.throughput.as_dict(),
            "tpot_p50_ms": self.tpot_p50_ms.as_dict(),
            "refused": self.refused.as_dict(),
            "ttft": [ttft.as_dict() for ttft in self.ttft],
            "windows": [window.as_dict() for window in self.windows],
            "misses": self.misses,
        }


def check_steady(run: ServingRun) -> None:
    """Raise DataError if no request that was sent after the warm-up was answered."""
    if not (run.served & run.steady).any():
        raise DataError(
            f"no request that was sent after the warm-up of {run.warm_up_s:g} s was answered"
        )


def compare_serving(
    measured: ServingRun, simulated: ServingRun, profile: str, *, fitted: bool = False
) -> ServingComparison:
    """Compare a measured run with its simulation."""
    sides = simulated, measured
    return ServingComparison(
        name=measured.name,
        engine=measured.engine,
        profile=profile,
        fitted=fitted,
        requests=len(measured),
        throughput=Pair(*map(throughput_tok_s, sides)),
        tpot_p50_ms=Pair(*map(tpot_p50_ms, sides)),
        ttft=tuple(_ttft(group, simulated, measured) for group in groups(measured)),
        refused=Pair(*(int((~run.served & ~too_long(measured)).sum()) for run in sides)),
        windows=_windows(simulated, measured),
    )


def groups(run: ServingRun) -> list[str]:
    """Return the kinds of clients (client names without trailing numbers) in alphabetical order."""
    return sorted({_group(client) for client in run.client})


def too_long(run: ServingRun) -> Flags:
    """Return a mask of the requests that the engine refused because they were too long."""
    return np.array([refused_by_length(run, request) for request in requests_of(run)])


def throughput_tok_s(run: ServingRun, until_tokens: int | None = None) -> float:
    """Return input and output tokens per second, from the first request to the last answer.

    If ``until_tokens`` is not None, the period ends with the answer that completes this number of
    tokens.
    """
    served = np.flatnonzero(run.served)
    ends_s = (run.submit_s + run.latency_s)[served]
    order = np.argsort(ends_s, kind="stable")
    tokens = np.cumsum((run.prompt_tokens + run.output_tokens)[served][order])
    if not len(served):
        return 0.0
    last = len(served) - 1
    if until_tokens is not None:
        last = min(last, int(np.searchsorted(tokens, until_tokens)))
    return float(tokens[last] / ends_s[order][last])


def answered_tokens(run: ServingRun) -> int:
    """Return the total number of input and output tokens of all answered requests."""
    return int((run.prompt_tokens + run.output_tokens)[run.served].sum())


def tpot_p50_ms(run: ServingRun) -> float:
    """Return the median time per output token (ms) of the requests after the warm-up, or NaN."""
    chosen = run.served & run.steady & (run.output_tokens > 1)
    if not chosen.any():
        return float("nan")
    decode_s = (run.latency_s - run.ttft_s)[chosen]
    return 1_000 * float(np.median(decode_s / (run.output_tokens[chosen] - 1)))


def off_target(pair: Pair, percent: float) -> bool:
    """Return whether a simulated value misses its target.

    If the measured value is undefined, no simulated value misses the target.
    """
    return pair.measured == pair.measured and not pair.within(percent)


def ttft_percentile_s(run: ServingRun, group: str, percent: float) -> float:
    """Return a TTFT percentile (s) of one kind of clients' requests after the warm-up."""
    mine = np.array([_group(client) == group for client in run.client])
    chosen = mine & run.served & run.steady
    return float(np.percentile(run.ttft_s[chosen], percent)) if chosen.any() else float("nan")


def clients_of(run: ServingRun) -> tuple[str, ...]:
    """Return the sorted names of a run's clients, which ``trace_of`` numbers in this order."""
    return tuple(sorted(set(run.client)))


def trace_of(run: ServingRun, chosen: Flags | None = None) -> Trace:
    """Return a trace of the requests after the warm-up, limited to the mask ``chosen`` if given."""
    names = clients_of(run)
    steady = run.steady if chosen is None else run.steady & chosen
    numbers = np.array([names.index(client) for client in run.client])
    return Trace(
        client=numbers[steady],
        prompt_tokens=run.prompt_tokens[steady],
        output_tokens=run.output_tokens[steady],
        req_time_s=run.submit_s[steady],
        first_token_latency_s=run.ttft_s[steady],
        request_latency_s=run.latency_s[steady],
    )


def _group(client: str) -> str:
    return client.rstrip("0123456789").rstrip("_")


def _ttft(group: str, simulated: ServingRun, measured: ServingRun) -> TTFT:
    p50, p99 = (
        Pair(*(ttft_percentile_s(run, group, percent) for run in (simulated, measured)))
        for percent in (50, 99)
    )
    return TTFT(group, p50, p99)


def _windows(simulated: ServingRun, measured: ServingRun) -> tuple[Window, ...]:
    """Return the window from the warm-up's end to the last arrival, and its time slices."""
    found = windows(trace_of(simulated), trace_of(measured), WEIGHTS)
    names = clients_of(measured)
    return tuple(replace(window, names=names) for window in found)


def _misses(run: ServingComparison) -> Iterator[str]:
    rates = [("throughput", run.throughput), ("time per output token P50", run.tpot_p50_ms)]
    for name, pair in rates:
        if off_target(pair, RATE_TARGET_PCT):
            yield _miss(name, pair, RATE_TARGET_PCT)
    if abs(run.refused.simulated - run.refused.measured) > REFUSED_TARGET * run.requests:
        yield _miss("refused", run.refused, 100 * REFUSED_TARGET)
    for ttft in run.ttft:
        for rank, pair, target in (
            ("P50", ttft.p50_s, P50_TARGET_PCT),
            ("P99", ttft.p99_s, P99_TARGET_PCT),
        ):
            if pair.measured > LONG_TTFT_S and not pair.within(target):
                yield _miss(f"TTFT {rank} of {ttft.group}", pair, target)
    for window in run.windows[:1]:
        if abs(window.jain.simulated - window.jain.measured) > JAIN_TARGET:
            yield f"Jain: {window.jain.simulated:.3f} against {window.jain.measured:.3f}"


def _miss(name: str, pair: Pair, target: float) -> str:
    error = "undefined" if pair.error_pct is None else f"{pair.error_pct:+.1f}%"
    numbers = f"{pair.simulated:.4g} against {pair.measured:.4g}"
    return f"{name}: {numbers}, {error} (target {target:g}%)"
