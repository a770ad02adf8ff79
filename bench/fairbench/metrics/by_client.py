"""The tables of each client, cut out once for all clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fairbench.metrics.records import Ints, Programs, Requests


def rows_of(client: Ints, clients: int) -> Iterator[Ints]:
    """The rows of each client from 0 on, in their order."""
    # Of two bytes numpy sorts by radix, a tenth of the time.
    order = np.argsort(client.astype(np.int16) if clients < 2**15 else client, kind="stable")
    upto = np.searchsorted(client[order], np.arange(clients + 1))
    for low, high in pairwise(upto):
        yield order[low:high]


def by_client(
    requests: Requests, programs: Programs, clients: int
) -> Iterator[tuple[Requests, Programs]]:
    """The programs of each client and their requests, in their order.

    If ids of programs repeat, nobody knows whose a request is, and each gets the whole tables.
    """
    ids, first = np.unique(programs.program_id, return_index=True)
    if len(ids) < len(programs) or not len(ids):
        yield from [(requests, programs)] * clients
        return
    place = np.minimum(np.searchsorted(ids, requests.program_id), len(ids) - 1)
    found = ids[place] == requests.program_id
    owner = np.where(found, programs.client[first[place]], -1)
    both = rows_of(owner, clients), rows_of(programs.client, clients)
    for mine, own in zip(*both, strict=True):
        yield requests.take(mine), programs.take(own)
