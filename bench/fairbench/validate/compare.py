"""A measured run beside its simulation: the same numbers of both, their errors, and the targets.

Errors are in percent of the measured value. A target that a number misses is named in ``misses``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fairbench.core import ServiceWeights
from fairbench.metrics.fairness import jain
from fairbench.metrics.trace import (
    Trace,
    max_service_spread,
    service_rates_tok_s,
    throughput_tok_s,
    ttft_s,
)

WEIGHTS = ServiceWeights()  # 1 and 2, as in VTC-artifact
FEW_CLIENTS = 3  # up to so many are shown one by one

RATE_TARGET_PCT = 5.0  # throughput, service rate of each client, refusals
P50_TARGET_PCT, P99_TARGET_PCT = 15.0, 20.0  # of times to first token that exceed LONG_TTFT_S
LONG_TTFT_S = 1.0
GAP_TARGET_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class Pair:
    """One number of both sides; NaN where a side has none."""

    simulated: float
    measured: float

    @property
    def error_pct(self) -> float | None:
        """Percent of the measured value; None where that is undefined."""
        if self.simulated == self.measured:
            return 0.0
        if not self.measured or not isfinite(self.simulated - self.measured):
            return None
        return 100 * (self.simulated / self.measured - 1)

    def within(self, percent: float) -> bool:
        """Whether the error is defined and at most so much either way."""
        return self.error_pct is not None and abs(self.error_pct) <= percent

    def as_dict(self) -> dict[str, float | None]:
        """For JSON: undefined is null."""
        simulated, measured = (x if isfinite(x) else None for x in (self.simulated, self.measured))
        return {"simulated": simulated, "measured": measured, "error_pct": self.error_pct}


@dataclass(frozen=True, slots=True)
class TTFT:
    """Time to first token of a group of clients, in seconds."""

    group: str
    p50_s: Pair
    p99_s: Pair


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run, simulated and measured. Rates in tokens/s; service is input + 2 x output."""

    name: str
    scenario: str
    fitted: bool
    requests: int
    throughput: Pair
    service_rates: dict[int, Pair]
    max_gap: Pair
    jain: Pair
    ttft: tuple[TTFT, ...]
    refused: Pair

    @property
    def rate_errors_pct(self) -> list[float]:
        """Of each client's service rate, where defined."""
        errors = (pair.error_pct for pair in self.service_rates.values())
        return [error for error in errors if error is not None]

    @property
    def misses(self) -> list[str]:
        """The targets that are missed, each with what is missed by how much."""
        return list(_misses(self))

    def columns(self) -> Iterator[tuple[str, Pair]]:
        """Every number, by a name that is the same in all runs of a scenario."""
        yield "throughput", self.throughput
        yield from self.service_columns()
        yield "max gap", self.max_gap
        yield "Jain", self.jain
        for ttft in self.ttft:
            yield f"TTFT P50 of {ttft.group}", ttft.p50_s
            yield f"TTFT P99 of {ttft.group}", ttft.p99_s
        yield "refused", self.refused

    def service_columns(self) -> Iterator[tuple[str, Pair]]:
        """Each client's service rate."""
        for client, pair in self.service_rates.items():
            yield f"service rate of client {client}", pair

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
            "refused": self.refused.as_dict(),
            "ttft": [
                {"group": t.group, "p50_s": t.p50_s.as_dict(), "p99_s": t.p99_s.as_dict()}
                for t in self.ttft
            ],
            "clients": [
                {"client": client, "service_rate_tok_s": pair.as_dict()}
                for client, pair in self.service_rates.items()
            ],
            "misses": self.misses,
        }


def mean_size(errors: list[float]) -> float | None:
    """Mean of the absolute values, None of an empty list."""
    return sum(abs(error) for error in errors) / len(errors) if errors else None


def compare_run(
    name: str, scenario: str, measured: Trace, simulated: Trace, *, fitted: bool
) -> RunComparison:
    """Both sides of a run through the same functions."""
    rates = [service_rates_tok_s(trace, WEIGHTS) for trace in (simulated, measured)]
    return RunComparison(
        name=name,
        scenario=scenario,
        fitted=fitted,
        requests=len(measured),
        throughput=Pair(throughput_tok_s(simulated), throughput_tok_s(measured)),
        service_rates={c: Pair(rates[0][c], rates[1][c]) for c in measured.clients},
        max_gap=Pair(max_service_spread(simulated, WEIGHTS), max_service_spread(measured, WEIGHTS)),
        jain=Pair(jain(list(rates[0].values())), jain(list(rates[1].values()))),
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
        refused=Pair(simulated.refused, measured.refused),
    )


def groups(trace: Trace) -> dict[str, list[int]]:
    """Each client alone if there are few; else those that asked for less service, and for more."""
    clients = trace.clients
    if len(clients) <= FEW_CLIENTS:
        return {f"client {client}": [client] for client in clients}
    cost = WEIGHTS.extend * trace.prompt_tokens + WEIGHTS.output * trace.output_tokens
    demand = {client: int(cost[trace.client == client].sum()) for client in clients}
    ascending = sorted(clients, key=lambda client: (demand[client], client))
    half = len(clients) // 2
    return {"light half": ascending[:-half], "heavy half": ascending[-half:]}


def _misses(run: RunComparison) -> Iterator[str]:
    rates = [("throughput", run.throughput), *run.service_columns(), ("refused", run.refused)]
    for name, pair in rates:
        if not pair.within(RATE_TARGET_PCT):
            yield _miss(name, pair, f"{RATE_TARGET_PCT:g}%")
    for ttft in run.ttft:
        for rank, pair, target in (
            ("P50", ttft.p50_s, P50_TARGET_PCT),
            ("P99", ttft.p99_s, P99_TARGET_PCT),
        ):
            if pair.measured > LONG_TTFT_S and not pair.within(target):
                yield _miss(f"TTFT {rank} of {ttft.group}", pair, f"{target:g}%")
    if not gap_within(run.max_gap):
        yield _miss("max gap", run.max_gap, f"a factor of {GAP_TARGET_FACTOR:g}")


def gap_within(gap: Pair) -> bool:
    """Whether the two largest gaps are within ``GAP_TARGET_FACTOR`` of each other."""
    low, high = sorted((gap.simulated, gap.measured))
    return high <= GAP_TARGET_FACTOR * low


def _miss(name: str, pair: Pair, target: str) -> str:
    error = pair.error_pct
    by = "undefined" if error is None else f"{error:+.1f}%"
    return f"{name}: {pair.simulated:.4g} against {pair.measured:.4g}, {by} (target {target})"
