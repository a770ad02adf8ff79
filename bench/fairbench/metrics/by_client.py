"""The rows of each client, computed once for all clients."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Ints


def in_order(client: Ints, clients: int) -> tuple[Ints, Ints]:
    """Return the rows sorted by client, in stable order, and the bounds of each client's rows.

    The last bound is the number of rows.
    """
    # numpy sorts two-byte integers by radix, ten times as fast.
    order = np.argsort(client.astype(np.uint16) if clients <= 2**16 else client, kind="stable")
    bounds = np.searchsorted(client[order], np.arange(clients + 1))
    return order, bounds
