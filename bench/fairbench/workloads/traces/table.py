"""Classes for one request of a trace and for a table of all requests, with statistics.

Texts of prompts are split into blocks of characters and not stored. A block is identified by a hash
of its characters and of all earlier blocks. Texts with equal beginnings therefore have equal first
blocks. If the log has token counts, blocks are sized by the median ratio of counted to estimated
tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairbench.errors import DataError
from fairbench.files.reader import ReadMemory


class TraceRow(NamedTuple):
    """A request as read from a file; times are in nanoseconds on the file's clock.

    Attributes:
        at_ns: The arrival time in nanoseconds.
        client: The name of the client.
        input_tokens: The number of tokens in the prompt.
        output_tokens: The number of tokens in the answer.
        max_tokens: The limit on the output tokens of the request, or 0 if unknown.
        session: The name of the request's program, or "" if the request is a program by itself.
        end_ns: The time in ns at which the answer was complete, or None if unknown.
        blocks: The identities of the blocks at the beginning of the prompt. Blocks with equal
            identities have equal content. Tokens after the last block are unique to the request.
        block_size: The number of tokens in a block.
        synthetic: A description of the parts of the request that were not recorded.
        estimated: The estimated number of tokens in the text of the blocks, or 0 if the blocks have
            no text.
        think_ns: The time in ns from the end of the previous step's answer to this request, or None
            if unknown.
        branch: The number of the sub-agent that made the request, or 0 for the session itself.
        shared: The number of tokens at the prompt's beginning that other sessions may share.
    """

    at_ns: int
    client: str
    input_tokens: int
    output_tokens: int
    max_tokens: int = 0
    session: str = ""
    end_ns: int | None = None
    blocks: Sequence[int] = ()
    block_size: int = 0
    synthetic: str = ""
    estimated: int = 0
    think_ns: int | None = None
    branch: int = 0
    shared: int = 0


# Texts are split into blocks of 92 characters; such a block is assumed to have 20 tokens.
CHARACTERS, BLOCK_TOKENS = 92, 20
MOST_TOKENS = 2 * CHARACTERS

Ints = npt.NDArray[np.int64]


def blocks_of(text: str) -> list[int]:
    """Split a text into blocks and return their ids; the last block may be shorter."""
    found, before = [], b""
    for start in range(0, len(text), CHARACTERS):
        part = text[start : start + CHARACTERS].encode("utf-8", "surrogatepass")
        before = blake2b(before + part, digest_size=8).digest()
        found.append(int.from_bytes(before) >> 1)
    return found


def blocks_of_one_size(
    counts: Ints, ids: Ints, tokens: Ints, estimated: Ints
) -> tuple[Ints, Ints, int]:
    """Choose a block size and numbers of blocks that match the known token counts of prompts.

    The block size is ``BLOCK_TOKENS`` x (median of ``tokens / estimated`` over prompts with text).

    Args:
        counts: The number of blocks in each prompt.
        ids: The ids of the blocks of all prompts.
        tokens: The number of tokens in each prompt, as recorded in the trace.
        estimated: The estimated tokens of each prompt's text, or 0 if there is no text.

    Returns:
        The number of blocks of each prompt, the ids of all blocks, and the tokens per block.
    """
    rows = np.flatnonzero(estimated)
    ratio = float(np.median(tokens[rows] / estimated[rows]))
    size = min(MOST_TOKENS, max(1, round(BLOCK_TOKENS * ratio)))
    parts = np.split(ids, np.cumsum(counts)[:-1])
    wanted = -(-tokens // size)
    for row in rows[counts[rows] != wanted[rows]].tolist():
        parts[row] = np.array(_covering(parts[row].tolist(), int(wanted[row])), np.int64)
    return np.array([len(part) for part in parts]), np.concatenate(parts), size


def _covering(ids: list[int], wanted: int) -> list[int]:
    """Shorten or extend the list of a prompt's block ids to ``wanted`` ids.

    A list that is too long loses ids before its last id. A list that is too short gets ids that are
    derived from its last id. A list with fewer than half of ``wanted`` block ids is returned
    unchanged, because the log has probably cut the prompt.
    """
    if wanted > 2 * len(ids):
        return ids
    found = [*ids[: wanted - 1], ids[-1]] if wanted < len(ids) else list(ids)
    while len(found) < wanted:
        after = blake2b(found[-1].to_bytes(8), digest_size=8).digest()
        found.append(int.from_bytes(after) >> 1)
    return found


Floats = npt.NDArray[np.float64]

ROW_BYTES = 200  # A row takes this many bytes of memory while rows are read and sorted.
NAME_BYTES = 200  # memory in bytes of a client's or session's name, without its characters
MAX_SYNTHETIC = 8
# Times above 10^15 ns (11.6 days) count as dates, as times since 1970. As a float in seconds, a
# date is exact only to a microsecond.
SINCE_1970_NS = 10**15
FAILED = "failed requests"  # By default, a trace leaves out failed requests.


@dataclass(frozen=True, eq=False)
class TraceTable:
    """The requests of a trace as columns; row i of every column is request i.

    Attributes:
        clients: The names of the clients; a client's code is its position in this list.
        arrival_s: The time of arrival, in seconds after the first request.
        client: The code (number) of the client.
        input_tokens: The number of tokens in the prompt.
        output_tokens: The number of tokens in the answer.
        max_tokens: The limit on the output tokens of the request, or 0 if unknown.
        session: The number of the session, or -1 for a request without a session.
        end_s: The end of the answer in seconds after the first request; NaN if unknown.
        think_s: The seconds from the end of the previous step's answer to the request, or NaN.
        block_size: The number of tokens in a block.
        first_block: For each request, the index of its first block in ``blocks``; one more entry
            at the end holds the number of blocks.
        blocks: The ids of the blocks of all prompts.
        branch: The number of a sub-agent of the session, or 0 for the session itself.
        shared: The number of tokens at the prompt's beginning that other sessions may share.
        left_out: The number of requests in the trace file that are not in the table.
        who_left_out: A description of the requests that are not in the table.
        synthetic: Descriptions of the parts of the trace that were not recorded.
    """

    clients: tuple[str, ...]
    arrival_s: Floats
    client: Ints
    input_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    session: Ints
    end_s: Floats
    think_s: Floats
    block_size: Ints
    first_block: Ints
    blocks: Ints
    branch: Ints
    shared: Ints
    left_out: int = 0
    who_left_out: str = FAILED
    synthetic: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """The time from the first request to the last request, in seconds."""
        return float(self.arrival_s[-1])

    def selected(self, rows: Ints) -> TraceTable:
        """Return the requests in the order of ``rows``; clients without requests are dropped."""
        codes, client = np.unique(self.client[rows], return_inverse=True)
        counts = np.diff(self.first_block)[rows]
        starts = np.repeat(self.first_block[rows] - _sums_before(counts), counts)
        return replace(
            self,
            clients=tuple(self.clients[code] for code in codes),
            client=client.astype(np.int64),
            first_block=np.append(_sums_before(counts), counts.sum()),
            blocks=self.blocks[starts + np.arange(counts.sum())],
            **{name: getattr(self, name)[rows] for name in COLUMNS if name != "client"},
        )


LENGTHS = ("input_tokens", "output_tokens", "max_tokens")
COUNTS = ("client", *LENGTHS, "session", "block_size", "branch", "shared")
COLUMNS = ("arrival_s", "end_s", "think_s", *COUNTS)


def _sums_before(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts


class TableBuilder:
    """A builder of a trace table from rows in any order; error messages name the file ``shown``."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._memory = ReadMemory(shown)
        self._clients: dict[str, int] = {}
        self._sessions: dict[tuple[int, str], int] = {}
        self._numbers = {name: array("q") for name in ("at", "end", "think", *COUNTS)}
        self._counts, self._blocks, self._estimated = array("q"), array("q"), array("q")
        self._synthetic: dict[str, None] = {}
        self.left_out, self.who_left_out = 0, FAILED

    def add(self, row: TraceRow) -> None:
        """Add a request; raise DataError if the requests no longer fit into memory."""
        self._memory.take_bytes(ROW_BYTES + 24 * len(row.blocks) * (2 if row.estimated else 1))
        if row.synthetic and len(self._synthetic) < MAX_SYNTHETIC:
            self._synthetic[row.synthetic] = None
        names = len(self._clients) + len(self._sessions)
        client = self._clients.setdefault(row.client, len(self._clients))
        session = -1
        if row.session:
            session = self._sessions.setdefault((client, row.session), len(self._sessions))
        if names < len(self._clients) + len(self._sessions):
            self._memory.take_bytes(NAME_BYTES + 4 * (len(row.client) + len(row.session)))
        took_ns = -1 if row.end_ns is None else row.end_ns - row.at_ns
        lengths = (row.input_tokens, row.output_tokens, row.max_tokens)
        think_ns = -1 if row.think_ns is None else row.think_ns
        times = (row.at_ns, took_ns, think_ns)
        values = (*times, client, *lengths, session, row.block_size, row.branch, row.shared)
        for column, value in zip(self._numbers.values(), values, strict=True):
            column.append(value)
        self._counts.append(len(row.blocks))
        self._blocks.extend(row.blocks)
        self._estimated.append(row.estimated)

    @property
    def began_s(self) -> float:
        """The time in seconds of the earliest arrival, on the file's clock."""
        return min(self._numbers["at"]) / 1e9

    def table(self) -> TraceTable:
        """Return all rows as a table, with clients sorted by name.

        Raises DataError if the table has no rows.
        """
        failed = f", but for {self.left_out} that failed" if self.left_out else ""
        column: dict[str, Any] = {name: np.array(one) for name, one in self._numbers.items()}
        parts = PromptBlocks(*map(np.array, (self._counts, self._blocks, self._estimated)))
        if not len(parts.counts):
            raise DataError(f"{self._shown}: no requests{failed}")
        made = table_of(list(self._clients), column, parts, tuple(self._synthetic))
        return replace(made, left_out=self.left_out, who_left_out=self.who_left_out)


class PromptBlocks(NamedTuple):
    """The blocks of prompts: each prompt's number of blocks, and the ids of all blocks in order.

    ``estimated`` is each prompt's approximate number of tokens, or 0 if its text is unknown.
    """

    counts: Ints
    ids: Ints
    estimated: Ints


def table_of(
    clients: list[str], column: dict[str, Any], parts: PromptBlocks, synthetic: tuple[str, ...]
) -> TraceTable:
    """Build a table of requests in order of time, with clients in order of names.

    Args:
        clients: The names of the clients; ``column["client"]`` holds positions in this list.
        column: Arrays by column name, each of shape (n_requests,), n_requests > 0. ``at``
            (arrival), ``end`` (duration of the answer) and ``think`` are in ns, negative if
            unknown; ``COUNTS`` names the other arrays.
        parts: The blocks that make up the prompts.
        synthetic: Descriptions of the parts of the trace that were not recorded.
    """
    at_ns, took_ns = column.pop("at"), column.pop("end")
    think_ns = column.pop("think")
    names = sorted(clients, key=_natural_order)
    place = {name: number for number, name in enumerate(names)}
    code = np.array([place[name] for name in clients], np.int64)
    counts, blocks, estimated = parts
    if estimated.any():
        tokens = column["input_tokens"]
        counts, blocks, size = blocks_of_one_size(counts, blocks, tokens, estimated)
        column["block_size"] = np.where(estimated > 0, size, column["block_size"])
    arrival_s: Floats = (at_ns - at_ns.min()) / 1e9
    if at_ns.min() > SINCE_1970_NS:
        arrival_s = np.round(arrival_s, 6)
    table = TraceTable(
        tuple(names),
        arrival_s=arrival_s,
        end_s=np.where(took_ns < 0, np.nan, arrival_s + took_ns / 1e9),
        think_s=np.where(think_ns < 0, np.nan, think_ns / 1e9),
        first_block=np.append(_sums_before(counts), counts.sum()),
        blocks=blocks,
        synthetic=synthetic,
        **column | {"client": code[column["client"]]},
    )
    return table.selected(np.argsort(arrival_s, kind="stable"))


def _natural_order(name: str) -> tuple[int, int, str]:
    """Return a sort key for names: numbers are sorted by value and precede all other names."""
    number = name.isascii() and name.isdigit() and len(name) < 19
    return (0, int(name), name) if number else (1, 0, name)


PERCENTILES = (50, 90, 99)
PEAK_S = 60.0


def facts_of_table(table: TraceTable) -> dict[str, Any]:
    """Return JSON-ready statistics of all requests and, under ``clients``, of each client.

    Rates are in requests/s, and lengths are in tokens. ``cv`` is the coefficient of variation of
    the gaps between requests: 1 for a Poisson process, null for fewer than three requests.
    ``last_end_s`` is the time from the first arrival to the end of the last answer, or null if no
    answer's end is known.
    """
    sessions = table.session[table.session >= 0]
    by_client = np.argsort(table.client, kind="stable")
    counts = np.bincount(table.client, minlength=len(table.clients))
    parts = np.split(by_client, np.cumsum(counts)[:-1])
    alone = len(table) - len(sessions)
    ends = table.end_s[np.isfinite(table.end_s)]
    peak = np.unique(table.arrival_s // PEAK_S, return_counts=True)[1].max()
    peak_s = min(PEAK_S, float(table.arrival_s[-1])) or PEAK_S
    return {
        **_request_facts(table, np.arange(len(table))),
        "left_out": table.left_out,
        "who_left_out": table.who_left_out,
        "programs": alone + len(np.unique(sessions)),
        "span_s": table.span_s,
        "last_end_s": float(ends.max() - table.arrival_s.min()) if len(ends) else None,
        "peak_per_s": float(peak / peak_s),
        "batched_ratio": 1 - len(np.unique(table.arrival_s)) / len(table),
        **shared_prefixes(table),
        "clients": [
            {"client": name, "share": len(rows) / len(table), **_request_facts(table, rows)}
            for name, rows in zip(table.clients, parts, strict=True)
            if len(rows)
        ],
    }


def _request_facts(table: TraceTable, rows: Ints) -> dict[str, Any]:
    return {
        "requests": len(rows),
        "per_s": len(rows) / table.span_s if table.span_s else None,
        "cv": burstiness(table.arrival_s[rows]),
        **_length_facts("input", table.input_tokens[rows]),
        **_length_facts("output", table.output_tokens[rows]),
    }


def burstiness(arrival_s: Floats) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals; None if not defined."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def _length_facts(name: str, tokens: Ints) -> dict[str, Any]:
    ranks = np.percentile(tokens, PERCENTILES, method="inverted_cdf")
    return {
        f"{name}_tokens": int(tokens.sum()),
        f"{name}_mean": float(tokens.mean()),
        **{f"{name}_p{p}": int(one) for p, one in zip(PERCENTILES, ranks, strict=True)},
        f"{name}_max": int(tokens.max()),
    }


def shared_prefixes(table: TraceTable) -> dict[str, float]:
    """Return the fractions of input tokens that requests share, and that a prefix cache could hit.

    ``shared_ratio`` is the fraction of input tokens in blocks that occur in several requests.
    ``infinite_hit_rate`` is the fraction of input tokens that would hit an unlimited prefix cache.
    ``shared_ratio`` and ``infinite_hit_rate`` are 0 if the trace has no blocks.
    """
    total = int(table.input_tokens.sum())
    counts = np.diff(table.first_block)
    row = np.repeat(np.arange(len(table)), counts)
    place = np.arange(len(table.blocks)) - np.repeat(table.first_block[:-1], counts)
    left = table.input_tokens[row] - place * table.block_size[row]
    tokens = np.clip(left, 0, table.block_size[row])
    _, code = np.unique(table.blocks, return_inverse=True)
    pairs = np.unique(np.stack([code, row]), axis=1)[0] if len(code) else code
    several = np.bincount(pairs, minlength=1)[code] > 1 if len(code) else np.zeros(0, bool)
    return {
        "shared_ratio": float(tokens[several].sum() / total),
        "infinite_hit_rate": _hit_tokens(table, code, tokens) / total,
    }


def _hit_tokens(table: TraceTable, code: Ints, tokens: Ints) -> int:
    """Return how many input tokens would hit an unlimited prefix cache."""
    seen: dict[tuple[int, int], int] = {}  # The prefix tree maps (node, block) to a child node.
    hits = 0
    codes, lengths, first = code.tolist(), tokens.tolist(), table.first_block.tolist()
    for begin, end in pairwise(first):
        node = 0
        for at in range(begin, end):
            key = (node, codes[at])
            below = seen.get(key)
            if below is None:
                seen[key] = below = len(seen) + 1
            else:
                hits += lengths[at]
            node = below
    return hits
