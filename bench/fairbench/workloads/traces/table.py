"""The requests of a trace as arrays in order of time, compact enough for a day of traffic."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairbench.errors import DataError
from fairbench.files.reader import Memory
from fairbench.workloads.traces.rows import Row
from fairbench.workloads.traces.texts import fitted

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROW_BYTES = 200  # bytes of a row while it is read and sorted
NAME_BYTES = 200  # bytes of a client or a session, besides its characters
MAX_SYNTHETIC = 8  # most different lengths
SINCE_1970_NS = 10**15  # times this large are dates, and floats represent their microseconds


FAILED = "failed requests"  # the requests left out of a trace, unless its format differs


@dataclass(frozen=True, eq=False)
class Table:
    """The requests of a trace; row i of every column is request i.

    ``clients`` names the codes in ``client``.

    ``arrival_s`` is relative to the first request; unknown values are NaN in ``end_s``, -1 in
    ``session`` and NaN in ``think_s``, the time since the answer to the previous step. The blocks
    of request i are ``blocks[first_block[i]:first_block[i + 1]]``, of ``block_size[i]`` tokens
    each. ``left_out`` requests are not in the table; ``who_left_out`` describes them; ``synthetic``
    names the fields that were not recorded. ``branch`` is 0, or the number of a sub-agent of the
    session. ``shared`` is the number of tokens at the prompt's beginning that other sessions may
    also have.
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
        """Return the time from the first request to the last (s)."""
        return float(self.arrival_s[-1])

    def taken(self, rows: Ints) -> Table:
        """Return some of the requests, in the given order, without clients that have none left."""
        codes, client = np.unique(self.client[rows], return_inverse=True)
        counts = np.diff(self.first_block)[rows]
        starts = np.repeat(self.first_block[rows] - _before(counts), counts)
        return replace(
            self,
            clients=tuple(self.clients[code] for code in codes),
            client=client.astype(np.int64),
            first_block=np.append(_before(counts), counts.sum()),
            blocks=self.blocks[starts + np.arange(counts.sum())],
            **{name: getattr(self, name)[rows] for name in COLUMNS if name != "client"},
        )


LENGTHS = ("input_tokens", "output_tokens", "max_tokens")
COUNTS = ("client", *LENGTHS, "session", "block_size", "branch", "shared")
COLUMNS = ("arrival_s", "end_s", "think_s", *COUNTS)


def _before(counts: Ints) -> Ints:
    """Return the exclusive cumulative sums of counts."""
    return np.cumsum(counts) - counts


class TableBuilder:
    """A builder that takes rows in any order. ``shown`` is the file in error messages."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._memory = Memory(shown)
        self._clients: dict[str, int] = {}
        self._sessions: dict[tuple[int, str], int] = {}
        self._numbers = {name: array("q") for name in ("at", "end", "think", *COUNTS)}
        self._counts, self._blocks, self._estimated = array("q"), array("q"), array("q")
        self._synthetic: dict[str, None] = {}
        self.left_out, self.who_left_out = 0, FAILED

    def add(self, row: Row) -> None:
        """Add a row. Raises DataError if the rows no longer fit into memory."""
        self._memory.take(ROW_BYTES + 24 * len(row.blocks) * (2 if row.estimated else 1))
        if row.synthetic and len(self._synthetic) < MAX_SYNTHETIC:
            self._synthetic[row.synthetic] = None
        names = len(self._clients) + len(self._sessions)
        client = self._clients.setdefault(row.client, len(self._clients))
        session = -1
        if row.session:
            session = self._sessions.setdefault((client, row.session), len(self._sessions))
        if names < len(self._clients) + len(self._sessions):
            self._memory.take(NAME_BYTES + 4 * (len(row.client) + len(row.session)))
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
        """The earliest arrival on the file's clock (s)."""
        return min(self._numbers["at"]) / 1e9

    def table(self) -> Table:
        """Return all rows, with clients in the order of names. Raises DataError without rows."""
        failed = f", but for {self.left_out} that failed" if self.left_out else ""
        column: dict[str, Any] = {name: np.array(one) for name, one in self._numbers.items()}
        parts = Blocks(*map(np.array, (self._counts, self._blocks, self._estimated)))
        if not len(parts.counts):
            raise DataError(f"{self._shown}: no requests{failed}")
        made = table_of(list(self._clients), column, parts, tuple(self._synthetic))
        return replace(made, left_out=self.left_out, who_left_out=self.who_left_out)


class Blocks(NamedTuple):
    """The blocks of prompts: their number for each request, and their identities.

    ``estimated`` is the approximate number of tokens in the text of the blocks, 0 without a text.
    """

    counts: Ints
    ids: Ints
    estimated: Ints


def table_of(
    clients: list[str], column: dict[str, Any], parts: Blocks, synthetic: tuple[str, ...]
) -> Table:
    """Return requests as a table, in order of time, with clients in the order of names.

    Args:
        clients: Names of the codes in ``column["client"]``.
        column: Arrays ``at``, ``end`` (duration) and ``think``, in ns, negative for unknown ones,
            and those of ``COUNTS``; shape (n,), at least one request.
        parts: Blocks of the prompts.
        synthetic: Parts that were not recorded.
    """
    at_ns, took_ns = column.pop("at"), column.pop("end")
    think_ns = column.pop("think")
    names = sorted(clients, key=_natural)
    place = {name: number for number, name in enumerate(names)}
    code = np.array([place[name] for name in clients], np.int64)
    counts, blocks, estimated = parts
    if estimated.any():
        tokens = column["input_tokens"]
        counts, blocks, size = fitted(counts, blocks, tokens, estimated)
        column["block_size"] = np.where(estimated > 0, size, column["block_size"])
    arrival_s: Floats = (at_ns - at_ns.min()) / 1e9
    if at_ns.min() > SINCE_1970_NS:
        arrival_s = np.round(arrival_s, 6)
    table = Table(
        tuple(names),
        arrival_s=arrival_s,
        end_s=np.where(took_ns < 0, np.nan, arrival_s + took_ns / 1e9),
        think_s=np.where(think_ns < 0, np.nan, think_ns / 1e9),
        first_block=np.append(_before(counts), counts.sum()),
        blocks=blocks,
        synthetic=synthetic,
        **column | {"client": code[column["client"]]},
    )
    return table.taken(np.argsort(arrival_s, kind="stable"))


def _natural(name: str) -> tuple[int, int, str]:
    """Return a sort key: numbers by value, and before texts."""
    number = name.isascii() and name.isdigit() and len(name) < 19
    return (0, int(name), name) if number else (1, 0, name)
