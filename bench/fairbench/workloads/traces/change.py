"""Changes of traces: parts, combinations, other rates, spread times, made-up clients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate

import numpy as np

from fairbench.errors import UsageError, unknown_name
from fairbench.streams import stream
from fairbench.workloads.traces.rows import MAX_S
from fairbench.workloads.traces.table import Table

LABEL_BYTES = 5
COMBINED = "times and clients come from one trace, lengths and prefixes from another"
ID_BYTES = 8


def cut(
    table: Table,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    head: int | None = None,
    clients: Collection[str] = (),
    largest: int | None = None,
) -> Table:
    """Return the first ``head`` requests of some clients in [``start_s``, ``end_s``).

    ``largest`` keeps that many clients with the most requests in that time. A session is cut at the
    same times. Raises UsageError for an unknown client, or if no request is left.
    """
    if end_s is not None and end_s <= start_s:
        raise UsageError(f"--to {end_s:g}: must be above {'--from ' * (start_s > 0)}{start_s:g}")
    kept = table.arrival_s >= start_s
    if end_s is not None:
        kept &= table.arrival_s < end_s
    for name in clients:
        if name not in table.clients:
            raise unknown_name("client in the trace", name, table.clients)
    if clients:
        codes = [code for code, name in enumerate(table.clients) if name in clients]
        kept &= np.isin(table.client, codes)
    if largest is not None:
        counts = np.bincount(table.client[kept], minlength=len(table.clients))
        kept &= np.isin(table.client, np.argsort(-counts, kind="stable")[:largest])
    rows = np.flatnonzero(kept)[:head]
    if not len(rows):
        raise UsageError("the chosen part of the trace has no requests; choose a larger part")
    part = table.taken(rows)
    first_s = part.arrival_s[0]
    return replace(
        part,
        arrival_s=np.round(part.arrival_s - first_s, 9),
        end_s=np.round(part.end_s - first_s, 9),
        left_out=0,
    )


def scaled(table: Table, rate: float) -> Table:
    """Return the table at ``rate`` times the request rate: all times are divided by ``rate``."""
    if not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate}: must be above 0")
    longest_s = max(table.span_s, float(np.nan_to_num(table.end_s).max()))
    if longest_s > rate * MAX_S:
        raise UsageError(
            f"--rate {rate}: the trace would last more than {MAX_S:,.0f} s; give a higher rate"
        )
    return replace(
        table,
        arrival_s=table.arrival_s / rate,
        end_s=table.end_s / rate,
        think_s=table.think_s / rate,
    )


def combined(senders: Table, prompts: Table) -> Table:
    """Return the times and clients of one trace with the requests of another, both in order.

    The result is as long as the shorter trace. Sessions and end times are dropped, and the result
    is marked as synthetic.
    """
    rows = np.arange(min(len(senders), len(prompts)))
    who, what = senders.taken(rows), prompts.taken(rows)
    return replace(
        what,
        clients=who.clients,
        client=who.client,
        arrival_s=who.arrival_s,
        session=np.full(len(rows), -1),
        end_s=np.full(len(rows), np.nan),
        think_s=np.full(len(rows), np.nan),
        left_out=0,
        synthetic=tuple(dict.fromkeys((COMBINED, *who.synthetic, *what.synthetic))),
    )


def anonymized(table: Table, key: bytes) -> Table:
    """Return the table with clients and blocks renamed by a keyed hash.

    The same key gives the same labels, in other files too. Without the key, no reader can test
    whether a name occurs. Sessions are already numbers.
    """
    labels = tuple(
        f"c-{_hash(b'client', name.encode(), key).hex()[: 2 * LABEL_BYTES]}"
        for name in table.clients
    )
    if len(set(labels)) < len(labels):
        raise UsageError("--key-file: two clients would get the same label; choose another key")
    known, code = np.unique(table.blocks, return_inverse=True)
    ids = [int.from_bytes(_hash(b"block", str(one).encode(), key)) >> 1 for one in known.tolist()]
    return replace(table, clients=labels, blocks=np.array(ids, np.int64)[code])


def _hash(purpose: bytes, text: bytes, key: bytes) -> bytes:
    return blake2b(text, digest_size=ID_BYTES, key=blake2b(key).digest(), person=purpose).digest()


def spread_out(table: Table) -> Table:
    """Return the table with a distinct time for each request, in the same order.

    The last instant lasts as long as the previous one. A table with a single instant is unchanged.
    """
    moments, first, count = np.unique(table.arrival_s, return_index=True, return_counts=True)
    if len(moments) < 2:
        return table
    lengths = np.diff(moments)
    lengths = np.append(lengths, lengths[-1])
    within = np.arange(len(table)) - np.repeat(first, count)
    arrival_s = table.arrival_s + within * np.repeat(lengths / count, count)
    return replace(table, arrival_s=arrival_s, end_s=table.end_s + (arrival_s - table.arrival_s))


SYNTHETIC = "synthetic"
"""The prefix of clients' names; the rank follows."""


def assigned(table: Table, count: int) -> Table:
    """Return the table with each program assigned to one of ``count`` clients by Zipf's law.

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
        clients=tuple(f"{SYNTHETIC}-{rank}" for rank in range(1, count + 1)),
        client=owner.astype(np.int64),
    )
