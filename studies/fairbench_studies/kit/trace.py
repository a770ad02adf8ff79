"""Runs for which only the latencies of requests are known, such as published measurements.

Runs that other projects measured have no service log and no admission times. Simulated replays are
reduced to the columns of measured runs, so that the same functions evaluate both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import Flags, Floats, Ints

_INSTANT_S = 1e-6  # shortest time, in seconds, over which a request's service is spread


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The requests of one run as arrays with one entry per request, in any order.

    ``req_time_s`` holds the arrival times in seconds. The latencies are the times in seconds from
    arrival to the first and the last output token, and are NaN for refused requests.
    """

    client: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    req_time_s: Floats
    first_token_latency_s: Floats
    request_latency_s: Floats

    def __len__(self) -> int:
        return len(self.client)

    @property
    def finished(self) -> Flags:
        """A mask of the requests that were served and not refused."""
        return ~np.isnan(self.request_latency_s)

    @property
    def refused(self) -> int:
        """The number of requests that a rate limit refused."""
        return int(np.count_nonzero(~self.finished))

    @property
    def clients(self) -> list[int]:
        """All client numbers in ascending order, including clients that were never served."""
        return [int(client) for client in np.unique(self.client)]

    @property
    def duration_s(self) -> float:
        """The seconds from the first arrival to the last completion of a served request."""
        return float(np.nanmax(self.req_time_s + self.request_latency_s) - self.req_time_s.min())

    def service_tokens(self, weights: ServiceWeights) -> Floats:
        """Return each request's weighted tokens with cached input, or 0 if it was refused."""
        cost = weights.extend * self.prompt_tokens + weights.output * self.output_tokens
        return np.where(self.finished, cost, 0.0)


def throughput_tok_s(trace: Trace) -> float:
    """Return the input and output tokens of served requests per second of the run."""
    tokens = (trace.prompt_tokens + trace.output_tokens)[trace.finished].sum()
    return float(tokens / trace.duration_s) if tokens else 0.0


def ttft_s(trace: Trace, clients: list[int], percent: float) -> float:
    """Return a percentile of the TTFT in seconds, over the served requests of the given clients."""
    chosen = np.isin(trace.client, clients) & trace.finished
    if not chosen.any():
        return float("nan")
    return float(np.percentile(trace.first_token_latency_s[chosen], percent))


def max_service_spread(trace: Trace, weights: ServiceWeights) -> float:
    """Return the largest difference between two clients' cumulative service until the last arrival.

    A measured run has only the times of each request's first and last token. By a rule of
    VTC-artifact (192c2e2, plot_6.2_work_diff.py), a request's service is spread evenly from its
    first to its last token. Service after the last arrival is left out, because it only shows which
    client's queue is longer.
    """
    served = trace.finished
    start = (trace.req_time_s + trace.first_token_latency_s)[served]
    last = (trace.req_time_s + trace.request_latency_s)[served]
    end = np.maximum(last, start + _INSTANT_S)
    horizon_s = float(trace.req_time_s.max())
    times = np.unique(np.concatenate([start, end, [horizon_s]]))
    times = times[times <= horizon_s]
    service, owner = trace.service_tokens(weights)[served], trace.client[served]
    curves = [
        _accumulated(times, start[mine], end[mine], service[mine])
        for mine in (owner == client for client in trace.clients)
    ]
    return float(np.ptp(np.array(curves), axis=0).max())


def _accumulated(times: Floats, start: Floats, end: Floats, service: Floats) -> Floats:
    """Return the cumulative service at each time, with service spread evenly over [start, end]."""
    rate = service / (end - start)
    events = np.concatenate([start, end])
    order = np.argsort(events, kind="stable")
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    at = events[order]
    if not len(at):
        return np.zeros(len(times))
    total = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(at))])
    curve: Floats = np.interp(times, at, total, left=0.0)
    return curve
