"""The largest lead in service over a client with waiting requests, from a run's service log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.records import Floats, Requests
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import merged, waits


class ServiceHistory(NamedTuple):
    """Cumulative service of clients; ``served`` has shape (n_times, n_clients), weighted tokens."""

    times: Floats
    served: Floats

    @classmethod
    def of(cls, service: ServiceRows, clients: int) -> ServiceHistory:
        """Return the history of the service.

        Prompts count at admission, and outputs at the end of a log interval.
        """
        rows = service.between(0, len(service))
        times = np.unique(np.concatenate([[-np.inf], rows.start_s, rows.end_s]))
        served = np.zeros((len(times), clients))
        first, last = (np.searchsorted(times, at) for at in (rows.start_s, rows.end_s))
        np.add.at(served, (first, rows.client), rows.extend_charged_tokens)
        np.add.at(served, (last, rows.client), OUTPUT_PRICE * rows.output_tokens)
        return cls(times, served.cumsum(axis=0))

    def between(self, start_s: float, end_s: float) -> Floats:
        """Return the cumulative service from one instant to another.

        The first row is the service before the time ``start_s``. An interval of the service log
        that lies only partly in this time counts as a whole. Therefore a lead in service is too
        large by at most the outputs in one interval of the service log.
        """
        first, after = self.span(start_s, end_s)
        return self.served[first - 1 : after]

    def span(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Return the slice of the times from ``start_s`` to ``end_s``, including both."""
        first = int(np.searchsorted(self.times, start_s))
        return first, int(np.searchsorted(self.times, end_s, "right"))


def largest_lead(requests: Requests, service: ServiceRows, clients: int, horizon_s: float) -> float:
    """Return the largest service lead of any client over a client that stays backlogged.

    Args:
        requests: The requests that one worker served.
        service: The service log of that worker.
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
