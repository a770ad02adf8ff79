"""The largest service lead over a client with waiting requests, computed from a service log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.records import Floats, Requests
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import merged, waits


class ServiceHistory(NamedTuple):
    """The service that each client has received up to each instant of a run.

    ``times`` are in seconds. ``served`` holds weighted tokens, with shape (n_times, n_clients).
    """

    times: Floats
    served: Floats

    @classmethod
    def of(cls, service: ServiceRows, clients: int) -> ServiceHistory:
        """Accumulate each client's service over time, from a service log.

        Input tokens count from a request's admission, and output tokens count from the end of their
        interval in the service log.
        """
        rows = service.between(0, len(service))
        times = np.unique(np.concatenate([[-np.inf], rows.start_s, rows.end_s]))
        served = np.zeros((len(times), clients))
        first, last = (np.searchsorted(times, at) for at in (rows.start_s, rows.end_s))
        np.add.at(served, (first, rows.client), rows.extend_charged_tokens)
        np.add.at(served, (last, rows.client), OUTPUT_PRICE * rows.output_tokens)
        return cls(times, served.cumsum(axis=0))

    def between(self, start_s: float, end_s: float) -> Floats:
        """Return the cumulative service in the log's rows from ``start_s`` to ``end_s``.

        The first returned row has the service of each client before ``start_s``. Log intervals that
        cross ``start_s`` or ``end_s`` count fully, so a lead can be overestimated by the output of
        one log interval.
        """
        first, after = self.span(start_s, end_s)
        return self.served[first - 1 : after]

    def span(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Return the half-open index range of the instants from ``start_s`` to ``end_s``."""
        first = int(np.searchsorted(self.times, start_s))
        return first, int(np.searchsorted(self.times, end_s, "right"))


def largest_lead(requests: Requests, service: ServiceRows, clients: int, horizon_s: float) -> float:
    """Return the largest increase of a client's lead over a waiting client, in weighted tokens.

    Args:
        requests: The requests that one worker served.
        service: The service log of the worker that served ``requests``.
        clients: The number of clients.
        horizon_s: The end of the run in seconds.
    """
    history = ServiceHistory.of(service, clients)
    queued = waits(requests, horizon_s)
    largest = 0.0
    for client in range(clients):
        mine = queued.client == client
        for start_s, end_s in zip(*merged(queued.start[mine], queued.end[mine]), strict=True):
            served = history.between(float(start_s), float(end_s))
            lead = served - served[:, [client]]
            rise = lead - np.minimum.accumulate(lead, axis=0)
            largest = max(largest, float(rise.max(initial=0.0)))
    return largest
