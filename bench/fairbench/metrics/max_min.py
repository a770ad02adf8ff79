"""Max-min fair allocations: a client can get more only at the cost of a client that has no more."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairbench.metrics.records import Floats


def max_min(capacity: float, demands: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Return the max-min fair allocation, which sums to min(capacity, total demand).

    No client gets more than its demand. No client could get more except at the cost of a client
    that has no more. With ``weights`` (positive; None is all equal), "more" refers to the
    allocation over the weight.
    """
    wanted = np.asarray(demands, dtype=np.float64)
    weight = np.ones(len(wanted)) if weights is None else np.asarray(weights, dtype=np.float64)
    assert capacity >= 0
    assert np.all(wanted >= 0)
    assert np.all(weight > 0)
    allocation = np.zeros(len(wanted))
    left = float(capacity)
    order = np.argsort(wanted / weight, kind="stable")
    claims = np.cumsum(weight[order][::-1])[::-1]  # the weights of all clients from each rank on
    for rank, client in enumerate(order):
        share = left / claims[rank]
        if wanted[client] >= share * weight[client]:
            allocation[order[rank:]] = share * weight[order[rank:]]
            break
        allocation[client] = wanted[client]
        left -= wanted[client]
    return allocation


def max_min_each(capacity: Floats, demands: Floats, weights: Floats) -> Floats:
    """Return the max-min allocation of every column of demands, shape (clients, columns).

    ``capacity`` has the total of each column.
    """
    weight = weights[:, np.newaxis]
    order = np.argsort(demands / weight, axis=0, kind="stable")
    wanted = np.take_along_axis(demands, order, axis=0)
    own = np.take_along_axis(np.broadcast_to(weight, demands.shape), order, axis=0)
    before = np.cumsum(wanted, axis=0) - wanted
    claims = np.cumsum(own[::-1], axis=0)[::-1]
    level = np.maximum(0.0, capacity - before) / claims
    # The first client in order whose demand reaches its level fixes the level of all clients after
    # it.
    unmet = wanted >= level * own
    first = np.where(unmet.any(axis=0), unmet.argmax(axis=0), len(wanted) - 1)
    fixed = np.where(
        unmet.any(axis=0), np.take_along_axis(level, first[np.newaxis], axis=0)[0], np.inf
    )
    allocation: Floats = np.minimum(demands, fixed * weight)
    return allocation
