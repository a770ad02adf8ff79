"""Service in time windows of simulated and measured runs.

The windows of a run are the time from first to last arrival, and slices of this time. Service after
the last arrival shows nothing about a scheduler, because the clients' totals at the end depend on
the trace.

Measured requests have only the times of arrival, first token and completion. A client is assumed to
receive service for the input and the first output token at the time of the first token. Later
output tokens are spread evenly until completion. In VTC-artifact, the input is also spread evenly
until completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.fairness import jain
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import Trace

WEIGHTS = ServiceWeights()  # weights: 1 for input and 2 for output tokens, as in VTC-artifact
SLICE_S = 60.0  # approximate length of a slice in seconds, as in VTC-artifact
RATE_TARGET_PCT = 5.0
# An error of at most ``TINY_SHARE_PCT`` percent of the window's total service is always accepted.
TINY_SHARE_PCT = 1.0
# In a slice, the accepted error of a client's service is 15% of its own service, or 5% of the
# service of all clients. One minibatch (requests admitted together) contributes about 15% of a
# slice's service.
SLICE_TARGET_PCT, SLICE_SHARE_PCT = 15.0, 5.0
# Suppose that two clients have service rates of 1 : 2, and that one rate is simulated too high and
# the other too low, each by the largest accepted error. Jain's index then changes by
# ``JAIN_TOLERANCE``.
JAIN_TOLERANCE, SLICE_JAIN_TOLERANCE = 0.025, 0.075


@dataclass(frozen=True, slots=True)
class Window:
    """Service rates (tokens/s, input + 2 x output) of each client from ``start_s`` to ``end_s``."""

    start_s: float
    end_s: float
    rates: dict[int, Pair]
    jain: Pair
    slice: bool = False
    # names of the clients for use in messages, in the order of the clients' numbers
    names: tuple[str, ...] = ()

    @property
    def target_pct(self) -> float:
        """The percentage by which a client's simulated rate may differ from the measured rate."""
        return SLICE_TARGET_PCT if self.slice else RATE_TARGET_PCT

    @property
    def jain_tolerance(self) -> float:
        """The amount by which the simulated Jain's index may differ from the measured index."""
        return SLICE_JAIN_TOLERANCE if self.slice else JAIN_TOLERANCE

    def rate_within(self, client: int) -> bool:
        """Return whether a client's rate meets its target, or misses it by a negligible amount."""
        pair, total = self.rates[client], sum(pair.measured for pair in self.rates.values())
        share = SLICE_SHARE_PCT if self.slice else TINY_SHARE_PCT
        tiny = abs(pair.simulated - pair.measured) <= share / 100 * total
        return tiny or pair.within(self.target_pct)

    @property
    def jain_within(self) -> bool:
        """Whether Jain's index meets its target, or is undefined in simulation and measurement."""
        undefined = isnan(self.jain.simulated), isnan(self.jain.measured)
        off = abs(self.jain.simulated - self.jain.measured)
        return all(undefined) or off <= self.jain_tolerance

    def as_dict(self) -> dict[str, Any]:
        """Return the window as a dict for JSON, with times in seconds of the trace's clock."""
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "jain_index": self.jain.as_dict(),
            "clients": [
                {
                    "client": self.names[client] if self.names else client,
                    "service_rate_tok_s": pair.as_dict(),
                }
                for client, pair in self.rates.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class TTFT:
    """The P50 and P99 time to first token of a group of clients, in seconds."""

    group: str
    p50_s: Pair
    p99_s: Pair

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON-compatible types."""
        percentiles = {"p50_s": self.p50_s.as_dict(), "p99_s": self.p99_s.as_dict()}
        return {"group": self.group, **percentiles}


def windows(simulated: Trace, measured: Trace, weights: ServiceWeights) -> tuple[Window, ...]:
    """Compare simulated with measured service, from first to last arrival and per time slice."""
    spans = spans_of(measured)
    return tuple(
        _window(simulated, measured, weights, span, cut=number > 0)
        for number, span in enumerate(spans)
    )


def spans_of(measured: Trace) -> list[tuple[float, float]]:
    """Return the period from the first to the last arrival and its slices, as (start, end) in s."""
    start_s, end_s = float(measured.req_time_s.min()), float(measured.req_time_s.max())
    return [(start_s, end_s), *_slices(start_s, end_s)]


def service_between(
    trace: Trace, weights: ServiceWeights, start_s: float, end_s: float
) -> dict[int, float]:
    """Return each client's service in a window. A refused request has a service of 0."""
    served = trace.finished
    first_s = (trace.req_time_s + trace.first_token_latency_s)[served]
    last_s = (trace.req_time_s + trace.request_latency_s)[served]
    at_once = weights.extend * trace.prompt_tokens[served] + weights.output
    later = weights.output * (trace.output_tokens[served] - 1)
    overlap_s = np.clip(np.minimum(last_s, end_s) - np.maximum(first_s, start_s), 0, None)
    span_s = np.maximum(last_s - first_s, np.finfo(float).tiny)
    starts = (first_s >= start_s) & (first_s < end_s)
    service = np.where(starts, at_once, 0) + later * overlap_s / span_s
    owner = trace.client[served]
    return {client: float(service[owner == client].sum()) for client in trace.clients}


def _slices(start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    number = round((end_s - start_s) / SLICE_S)
    if number > 1:
        yield from pairwise(map(float, np.linspace(start_s, end_s, number + 1)))


def _window(
    simulated: Trace, measured: Trace, weights: ServiceWeights, span: Sequence[float], *, cut: bool
) -> Window:
    start_s, end_s = span
    sides = [service_between(side, weights, start_s, end_s) for side in (simulated, measured)]
    length_s = end_s - start_s or 1.0  # avoids 0 / 0 in a window of length 0
    pairs = {
        client: Pair(sides[0][client] / length_s, sides[1][client] / length_s)
        for client in measured.clients
    }
    fairness = Pair(*(jain(list(side.values())) for side in sides))
    return Window(start_s, end_s, pairs, fairness, cut)
