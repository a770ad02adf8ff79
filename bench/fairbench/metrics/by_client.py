"""The rows of each client, found once for all clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fairbench.metrics.records import Ints


def rows_of(client: Ints, clients: int) -> Iterator[Ints]:
    """The rows of each client from 0 on, in their order."""
    # Of two bytes numpy sorts by radix, a tenth of the time.
    order = np.argsort(client.astype(np.int16) if clients < 2**15 else client, kind="stable")
    upto = np.searchsorted(client[order], np.arange(clients + 1))
    for low, high in pairwise(upto):
        yield order[low:high]
