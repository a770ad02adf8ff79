"""The measures of VTC-artifact: service in windows, service differences, response times.

Measured requests have only the times of arrival, first token and completion. The service of a
request (input + 2 x output tokens by default) is assumed to be spread evenly from the first to the
last token. Refused requests receive no service. Source: [VTC-artifact] 192c2e2, fair_bench/plot/.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import Floats
from fairbench_studies.kit.trace import Trace, throughput_tok_s

WINDOW_S = 60.0
# The tables of VTC-artifact use windows around 19 evenly spaced times in the 570 s after the
# warm-up of 30 s.
TABLE_S, WARMUP_S, PARTS = 600.0, 30.0, 20
# The service of requests whose first and last token are closer than ``SHORTEST_S`` is ignored.
SHORTEST_S = 1e-5

WEIGHTS = ServiceWeights()


class Differences(NamedTuple):
    """The maximum, mean and variance of a service difference over time, and the throughput.

    Service differences are in weighted tokens/s. Throughput is in tokens/s of input and output.
    """

    largest: float
    mean: float
    variance: float
    throughput_tok_s: float


def table_points() -> Floats:
    """Return the centres (s) of the windows from which the paper's tables are computed."""
    step_s = (TABLE_S - WARMUP_S) / PARTS
    return np.array([WARMUP_S + step_s * part for part in range(1, PARTS)])


def even_points(end_s: float, parts: int = PARTS) -> Floats:
    """Return the times that divide [0, end_s] into equal parts, without 0 and ``end_s``."""
    return np.array([end_s / parts * part for part in range(1, parts)])


def service_rates(
    trace: Trace, points_s: Floats, window_s: float = WINDOW_S, weights: ServiceWeights = WEIGHTS
) -> Floats:
    """Return clients' service per second around each of ``points_s``, shape (clients, points)."""
    return _between(trace, points_s - window_s / 2, points_s + window_s / 2, weights) / window_s


def accumulated(
    trace: Trace, times_s: Floats, start_s: float = 0.0, weights: ServiceWeights = WEIGHTS
) -> Floats:
    """Return each client's service from ``start_s`` to each time, shape (clients, times)."""
    return _between(trace, np.full(len(times_s), start_s), times_s, weights)


def accumulated_difference(
    trace: Trace, times_s: Floats, start_s: float = 0.0, weights: ServiceWeights = WEIGHTS
) -> Floats:
    """Return the gap in accumulated service between the most and the least served client."""
    spread: Floats = np.ptp(accumulated(trace, times_s, start_s, weights), axis=0)
    return spread


def demand_rates(
    trace: Trace, points_s: Floats, window_s: float = WINDOW_S, weights: ServiceWeights = WEIGHTS
) -> Floats:
    """Return clients' demand per second around each of ``points_s``, shape (clients, points)."""
    served = trace.finished
    arrived, cost = trace.req_time_s[served], trace.service_tokens(weights)[served]
    near = np.abs(arrived[:, np.newaxis] - points_s) <= window_s / 2
    return _by_client(trace, near * cost[:, np.newaxis]) / window_s


def windowed_difference(
    trace: Trace, points_s: Floats, window_s: float = WINDOW_S, weights: ServiceWeights = WEIGHTS
) -> Floats:
    """Return the sum of the clients' service deficits in the window around each point in time.

    A client's deficit is the service of the most served client minus the client's own service. A
    client's deficit is at most the absolute difference between its service and its demand, so that
    clients with little demand have small deficits. A client that is served late can have more
    service than demand in a window, and still have a deficit.
    """
    service = service_rates(trace, points_s, window_s, weights)
    demand = demand_rates(trace, points_s, window_s, weights)
    lacking = np.minimum(service.max(axis=0) - service, np.abs(demand - service))
    total: Floats = lacking.sum(axis=0)
    return total


def differences(trace: Trace, weights: ServiceWeights = WEIGHTS) -> Differences:
    """Return a run's values for the paper's tables of service differences."""
    values = windowed_difference(trace, table_points(), weights=weights)
    return Differences(
        float(values.max()), float(values.mean()), float(values.var()), throughput_tok_s(trace)
    )


def response_times(trace: Trace, points_s: Floats, window_s: float = WINDOW_S) -> Floats:
    """Return the clients' mean time to first token (s) in windows, shape (clients, points).

    The mean time is NaN if no first token of the client came in the window.
    """
    served = trace.finished
    latency_s = trace.first_token_latency_s[served]
    first_s = trace.req_time_s[served] + latency_s
    near = np.abs(first_s[:, np.newaxis] - points_s) <= window_s / 2
    count = _by_client(trace, near.astype(np.float64))
    total_s = _by_client(trace, near * latency_s[:, np.newaxis])
    means: Floats = np.divide(total_s, count, out=np.full_like(total_s, np.nan), where=count > 0)
    return means


def _between(trace: Trace, starts_s: Floats, ends_s: Floats, weights: ServiceWeights) -> Floats:
    """Return each client's service in time intervals, shape (clients, intervals)."""
    served = trace.finished
    first_s = (trace.req_time_s + trace.first_token_latency_s)[served]
    last_s = (trace.req_time_s + trace.request_latency_s)[served]
    length_s = last_s - first_s
    rate = np.where(
        length_s < SHORTEST_S,
        0.0,
        trace.service_tokens(weights)[served] / np.maximum(length_s, SHORTEST_S),
    )
    overlap_s = np.minimum(last_s[:, np.newaxis], ends_s) - np.maximum(
        first_s[:, np.newaxis], starts_s
    )
    return _by_client(trace, np.clip(overlap_s, 0, None) * rate[:, np.newaxis])


def _by_client(trace: Trace, values: Floats) -> Floats:
    owner = trace.client[trace.finished]
    return np.array([values[owner == client].sum(axis=0) for client in trace.clients])
