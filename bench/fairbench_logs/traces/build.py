"""A request of a trace as read from a file, and the construction of the table of all requests.

Texts of prompts are split into blocks of characters and not stored. A block is identified by a hash
of its characters and of all earlier blocks. Texts with equal beginnings therefore have equal first
blocks. If the log has token counts, blocks are sized by the median ratio of counted to estimated
tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from fairbench.errors import DataError
from fairbench.files.reader import ReadMemory
from fairbench.workloads.traces.table import COUNTS, FAILED, Floats, Ints, TraceTable, sums_before

ROW_BYTES = 200  # A row takes this many bytes of memory while rows are read and sorted.
NAME_BYTES = 200  # memory in bytes of a client's or session's name, without its characters
MAX_SYNTHETIC = 8
# Times above 10^15 ns (11.6 days) count as dates, as times since 1970. As a float in seconds, a
# date is exact only to a microsecond.
SINCE_1970_NS = 10**15


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
        first_block=np.append(sums_before(counts), counts.sum()),
        blocks=blocks,
        synthetic=synthetic,
        **column | {"client": code[column["client"]]},
    )
    return table.selected(np.argsort(arrival_s, kind="stable"))


def _natural_order(name: str) -> tuple[int, int, str]:
    """Return a sort key for names: numbers are sorted by value and precede all other names."""
    number = name.isascii() and name.isdigit() and len(name) < 19
    return (0, int(name), name) if number else (1, 0, name)
