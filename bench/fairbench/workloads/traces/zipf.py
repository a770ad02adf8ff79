"""Invented clients for a trace that names none, or too many."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from fairbench.streams import stream
from fairbench.workloads.traces.table import Table

NAME = "synthetic"
"""The prefix of clients' names; the rank follows."""


def assigned(table: Table, count: int) -> Table:
    """Return the table with each program assigned to one of ``count`` clients, the k-th by 1/k.

    The assignment is the same for every seed. A session stays with one client.
    """
    rng = stream(0, f"trace/clients/{count}")
    weights = list(accumulate(1 / rank for rank in range(1, count + 1)))
    owners = np.array(rng.choices(range(count), cum_weights=weights, k=len(table)))
    session = table.session
    first = np.full(session.max(initial=-1) + 1, -1)
    for row in np.flatnonzero(session >= 0)[::-1]:
        first[session[row]] = row
    owner = np.where(session < 0, owners, owners[first[session]] if len(first) else owners)
    return replace(
        table,
        clients=tuple(f"{NAME}-{rank}" for rank in range(1, count + 1)),
        client=owner.astype(np.int64),
    )
