"""GPU time: how long the workers were busy, and for which clients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fairbench.metrics.by_client import in_order
from fairbench.metrics.records import Facts, Floats
from fairbench.metrics.tables import Tables


def gpu_time(tables: Tables, facts: Facts) -> float:
    """Return the seconds in which workers computed, summed over workers and the run.

    The result is NaN if the composition of iterations is unknown: on real servers, and in older
    records.
    """
    times = [part.gpu_s for part in tables.service.parts()]
    return sum(float("nan") if one is None else float(one.sum()) for one in times)


def gpu_time_of_clients(tables: Tables, facts: Facts) -> Floats:
    """Return each client's part of the GPU time; the parts add up to the whole."""
    clients = len(facts.clients)
    total = np.zeros(clients)
    for part in tables.service.parts():
        if (gpu_s := part.gpu_s) is None:
            return np.full(clients, np.nan)
        order, bounds = in_order(part.client, clients)
        mine_s = gpu_s[order]
        total += [mine_s[low:high].sum() for low, high in pairwise(bounds.tolist())]
    return total
