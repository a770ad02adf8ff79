"""The comparison of a measured run with its simulation: values, errors and targets.

Errors are in percent of the measured value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import Trace, max_service_spread, throughput_tok_s, ttft_s
from fairbench_studies.validation.slora.targets import (
    GAP_TARGET_FACTOR,
    IDLE_TARGET_S,
    P99_TARGET_PCT,
    gap_within,
    least_within,
    p50_target,
    p50_within,
    p99_within,
)
from fairbench_studies.validation.windows import RATE_TARGET_PCT, TTFT, WEIGHTS, Window, windows

FEW_CLIENTS = 3  # If a run has more clients, the clients are compared as two groups.


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A measured run of S-LoRA's engine, with its simulation.

    Rates are in tokens per second. Service is input + 2 x output tokens.
    """

    name: str
    scenario: str
    fitted: bool
    requests: int
    throughput: Pair
    # ``windows[0]`` ends at the last arrival; the later elements of ``windows`` are slices of
    # ``windows[0]``.
    windows: tuple[Window, ...]
    max_gap: Pair
    ttft: tuple[TTFT, ...]
    least_ttft_s: Pair
    refused: Pair

    @property
    def service_rates(self) -> dict[int, Pair]:
        """Each client's service rate (tokens/s) until the last arrival."""
        return self.windows[0].rates

    @property
    def jain(self) -> Pair:
        """Jain's index of the clients' service rates until the last arrival."""
        return self.windows[0].jain

    @property
    def rate_errors_pct(self) -> list[float]:
        """The errors (%) of clients' simulated service rates, without undefined errors."""
        errors = (pair.error_pct for pair in self.service_rates.values())
        return [error for error in errors if error is not None]

    @property
    def misses(self) -> list[str]:
        """A text for each metric whose simulation error is too large, with the error."""
        return list(_misses(self))

    def columns(self) -> Iterator[tuple[str, Pair]]:
        """Yield the name and values of each metric by which the runs of a scenario are ranked.

        Service after the last arrival is not counted, because the total service until the last
        token depends on the trace alone.
        """
        yield "throughput", self.throughput
        yield from self.service_columns()
        yield "max gap", self.max_gap
        yield "Jain", self.jain
        for ttft in self.ttft:
            yield f"TTFT P50 of {ttft.group}", ttft.p50_s
            yield f"TTFT P99 of {ttft.group}", ttft.p99_s
        yield "refused", self.refused

    def other_columns(self) -> Iterator[tuple[str, Pair]]:
        """Yield metrics that are not used to rank runs, such as the lowest TTFT of all requests."""
        yield "least TTFT", self.least_ttft_s
        for number, window in enumerate(self.windows[1:], start=1):
            for client, pair in window.rates.items():
                yield f"service rate of client {client}, slice {number}", pair
            yield f"Jain, slice {number}", window.jain

    def service_columns(self) -> Iterator[tuple[str, Pair]]:
        for client, pair in self.service_rates.items():
            yield f"service rate of client {client}", pair

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        errors = self.rate_errors_pct
        return {
            "name": self.name,
            "scenario": self.scenario,
            "fitted": self.fitted,
            "num_requests": self.requests,
            "throughput_error_pct": self.throughput.error_pct,
            "service_rate_worst_error_pct": max(errors, key=abs, default=None),
            "service_rate_mean_error_pct": mean_size(errors),
            "throughput_tok_s": self.throughput.as_dict(),
            "max_service_gap": self.max_gap.as_dict(),
            "jain_index": self.jain.as_dict(),
            "least_ttft_s": self.least_ttft_s.as_dict(),
            "refused": self.refused.as_dict(),
            "ttft": [ttft.as_dict() for ttft in self.ttft],
            "windows": [window.as_dict() for window in self.windows],
            "misses": self.misses,
        }


def mean_size(errors: list[float]) -> float | None:
    """Return the mean absolute value of ``errors``, or None for an empty list."""
    return sum(abs(error) for error in errors) / len(errors) if errors else None


def compare_run(
    name: str, scenario: str, measured: Trace, simulated: Trace, *, fitted: bool
) -> RunComparison:
    """Compare a measured run with its simulation."""
    everyone = measured.clients
    return RunComparison(
        name=name,
        scenario=scenario,
        fitted=fitted,
        requests=len(measured),
        throughput=Pair(throughput_tok_s(simulated), throughput_tok_s(measured)),
        windows=windows(simulated, measured, WEIGHTS),
        max_gap=Pair(max_service_spread(simulated, WEIGHTS), max_service_spread(measured, WEIGHTS)),
        ttft=tuple(
            TTFT(
                group,
                *(
                    Pair(ttft_s(simulated, clients, percent), ttft_s(measured, clients, percent))
                    for percent in (50, 99)
                ),
            )
            for group, clients in groups(measured).items()
        ),
        least_ttft_s=Pair(ttft_s(simulated, everyone, 0), ttft_s(measured, everyone, 0)),
        refused=Pair(simulated.refused, measured.refused),
    )


def groups(trace: Trace) -> dict[str, list[int]]:
    """Split clients into a light and a heavy half by demand, or singly if there are few clients."""
    clients = trace.clients
    if len(clients) <= FEW_CLIENTS:
        return {f"client {client}": [client] for client in clients}
    cost = WEIGHTS.extend * trace.prompt_tokens + WEIGHTS.output * trace.output_tokens
    demand = {client: int(cost[trace.client == client].sum()) for client in clients}
    ascending = sorted(clients, key=lambda client: (demand[client], client))
    half = len(clients) // 2
    return {"light half": ascending[:-half], "heavy half": ascending[-half:]}


def _misses(run: RunComparison) -> Iterator[str]:
    for name, pair in (("throughput", run.throughput), ("refused", run.refused)):
        if not pair.within(RATE_TARGET_PCT):
            yield _miss(name, pair, f"{RATE_TARGET_PCT:g}%")
    for window in run.windows:
        yield from _window_misses(window)
    for ttft in run.ttft:
        for rank, pair, within, target in _ttft_targets(ttft):
            if not within:
                yield _miss(f"TTFT {rank} of {ttft.group}", pair, target)
    if not least_within(run.least_ttft_s):
        yield _miss("least TTFT", run.least_ttft_s, f"{IDLE_TARGET_S:g} s")
    if not gap_within(run.max_gap):
        yield _miss("max gap", run.max_gap, f"a factor of {GAP_TARGET_FACTOR:g}")


def _window_misses(window: Window) -> Iterator[str]:
    where = f" in {window.start_s:.0f} to {window.end_s:.0f} s" if window.slice else ""
    for client, pair in window.rates.items():
        if not window.rate_within(client):
            target = f"{window.target_pct:g}%"
            yield _miss(f"service rate of client {client}{where}", pair, target)
    if not window.jain_within:
        yield _miss(f"Jain{where}", window.jain, f"{window.jain_tolerance:g}")


def _ttft_targets(ttft: TTFT) -> Iterator[tuple[str, Pair, bool, str]]:
    yield "P50", ttft.p50_s, p50_within(ttft.p50_s), p50_target(ttft.p50_s)
    yield "P99", ttft.p99_s, p99_within(ttft.p99_s), f"{P99_TARGET_PCT:g}%"


def _miss(name: str, pair: Pair, target: str) -> str:
    error = pair.error_pct
    by = "undefined" if error is None else f"{error:+.1f}%"
    return f"{name}: {pair.simulated:.4g} against {pair.measured:.4g}, {by} (target {target})"
