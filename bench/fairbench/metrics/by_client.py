"""The rows of each client, found once for all clients."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Ints


def in_order(client: Ints, clients: int) -> tuple[Ints, Ints]:
    """The rows client after client, each one's in their order, and where those of each begin.

    The last of these bounds is the number of rows.
    """
    # Of two bytes numpy sorts by radix, a tenth of the time.
    order = np.argsort(client.astype(np.uint16) if clients <= 2**16 else client, kind="stable")
    bounds = np.searchsorted(client[order], np.arange(clients + 1))
    return order, bounds
