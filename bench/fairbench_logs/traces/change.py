"""Functions that cut, combine or otherwise change traces, and a function that writes a trace.

A written trace has fairbench's own format, one JSON line per request.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import UsageError, unknown_name
from fairbench.streams import stream
from fairbench.workloads.traces import MAX_NAME, MAX_S
from fairbench.workloads.traces.table import TraceTable

# Labels of clients are hashes of 5 bytes, and ids of blocks are hashes of 8 bytes.
LABEL_BYTES, ID_BYTES = 5, 8
COMBINED = "times and clients come from one trace, lengths and prefixes from another"


def cut_trace(
    table: TraceTable,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    head: int | None = None,
    clients: Collection[str] = (),
    largest: int | None = None,
) -> TraceTable:
    """Return the first ``head`` requests of the given clients in [``start_s``, ``end_s``).

    The ``largest`` clients with the most requests are kept. A session that crosses ``start_s`` or
    ``end_s`` loses its requests outside the interval. Raises UsageError if a client is unknown, or
    if no request is left.
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
    part = table.selected(rows)
    first_s = part.arrival_s[0]
    return replace(
        part,
        arrival_s=np.round(part.arrival_s - first_s, 9),
        end_s=np.round(part.end_s - first_s, 9),
        left_out=0,
    )


def scaled(table: TraceTable, rate: float) -> TraceTable:
    """Return the trace at ``rate`` times its request rate, with all times divided by ``rate``."""
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


def combined(senders: TraceTable, prompts: TraceTable) -> TraceTable:
    """Return a trace with the times and clients of ``senders``, and the prompts of ``prompts``.

    Request i gets its time and client from ``senders``, and its prompt and answer from ``prompts``.
    The result is as long as the shorter trace. Sessions and end times are dropped, and the combined
    trace is marked as synthetic.
    """
    rows = np.arange(min(len(senders), len(prompts)))
    who, what = senders.selected(rows), prompts.selected(rows)
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


def anonymized(table: TraceTable, key: bytes) -> TraceTable:
    """Return the table with clients and blocks renamed by a keyed hash.

    Files with the same ``key`` label a client equally. Only a user who knows ``key`` can test which
    client a label stands for. Sessions are numbered, so they need no hash.
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


def spread_out(table: TraceTable) -> TraceTable:
    """Give each request a different arrival time, in the recorded order.

    Requests with equal times are spread evenly until the next recorded time. Requests at the last
    recorded time are spread over the length of the gap before this time.
    """
    moments, first, count = np.unique(table.arrival_s, return_index=True, return_counts=True)
    if len(moments) < 2:
        return table
    lengths = np.diff(moments)
    lengths = np.append(lengths, lengths[-1])
    within = np.arange(len(table)) - np.repeat(first, count)
    arrival_s = table.arrival_s + within * np.repeat(lengths / count, count)
    return replace(table, arrival_s=arrival_s, end_s=table.end_s + (arrival_s - table.arrival_s))


# Made-up clients are called synthetic-1, synthetic-2, ..., in descending order of their rates.
SYNTHETIC = "synthetic"


def assigned(table: TraceTable, count: int) -> TraceTable:
    """Assign each program to a random made-up client; client shares follow Zipf's law.

    A program's client does not depend on the run's seed. A session's requests belong to one client.
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


def lines_of(table: TraceTable) -> Iterator[dict[str, Any]]:
    """Yield the requests of a table as JSON objects; unknown values are left out."""
    synthetic = "; ".join(table.synthetic)[:MAX_NAME]
    for row in range(len(table)):
        line: dict[str, Any] = {
            "time": float(table.arrival_s[row]),
            "client": table.clients[table.client[row]],
            "input_tokens": int(table.input_tokens[row]),
            "output_tokens": int(table.output_tokens[row]),
        }
        if most := int(table.max_tokens[row]):
            line["max_tokens"] = most
        if table.session[row] >= 0:
            line["session"] = f"s{table.session[row]}"
        if not np.isnan(table.think_s[row]):
            line["delay_s"] = float(table.think_s[row])
        if not np.isnan(table.end_s[row]):
            line["end"] = float(table.end_s[row])
        blocks = table.blocks[table.first_block[row] : table.first_block[row + 1]]
        if len(blocks):
            line |= {"hash_ids": blocks.tolist(), "block_size": int(table.block_size[row])}
        if branch := int(table.branch[row]):
            line["branch"] = branch
        if synthetic:
            line["synthetic"] = synthetic
        yield line


def write_trace(table: TraceTable, path: Path) -> None:
    """Write a trace to a file that does not exist yet.

    Raises UsageError if the file exists or cannot be written.
    """
    # The file gets its final name only when it is complete, so that no partial trace is used.
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            raise UsageError(f"--output-file {path}: the file exists already; choose another name")
        try:
            with part.open("w", encoding="utf-8") as file:
                for line in lines_of(table):
                    file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except (OSError, ValueError) as error:
        raise UsageError(f"--output-file {path}: cannot be written: {error}") from None
