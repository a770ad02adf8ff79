"""Decode stretches, and their rows of the service log, many of which are created at a time.

A row is one client's part of a stretch. With a thousand clients, hardly two requests in a batch
belong to the same client, so most rows of a log are of this kind. A stretch only records its
members, and rows are computed when a block of the log is full.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.hardware.gpu_time import Decoding, decode_parts


@dataclass(slots=True)
class Stretch:
    """Decode steps of one unchanged batch, each ``growth_ps`` longer than the previous step.

    ``fixed_ps`` is the part of a step that does not depend on context.
    """

    start_ps: int
    growth_ps: int
    context_tokens: int  # context at the first step
    fixed_ps: int
    steps: int = 0
    end_ps: int = 0
    told_ps: dict[str, int] | None = None

    def untold_ps(self, first: Mapping[str, Decoding]) -> Iterator[tuple[str, int]]:
        """Yield each client's part of the time not yet reported, and mark it as reported."""
        before, self.told_ps = self.told_ps or {}, self.gpu_ps(first)
        for client, gpu_ps in self.told_ps.items():
            yield client, gpu_ps - before.get(client, 0)

    def gpu_ps(self, first: Mapping[str, Decoding]) -> dict[str, int]:
        """Return each client's part of the time; ``first`` is its part in the first step."""
        took_ps = self.end_ps - self.start_ps
        return decode_parts(took_ps, self.fixed_ps * self.steps, first, self.steps)


Ints: TypeAlias = NDArray[np.int64]
EXACT = 2**50  # ``shares_upto`` is exact in machine integers up to this number
HEAD_COLUMNS = 10
HEAD = Struct(f"{HEAD_COLUMNS}q")


class InBatch:
    """The clients' parts of a decode batch, in order of arrival.

    A part is a client's number, requests and context, in arrays that a stretch copies whole.
    ``index`` numbers the clients; an unknown client gets the next number. Context is
    ``base_tokens`` at the batch's step 0 and grows by a token per request and step. The stretch to
    record began at ``step``.
    """

    __slots__ = ("base_tokens", "clients", "index", "per_client", "requests", "step")

    def __init__(self, index: dict[str, int]) -> None:
        self.index = index
        self.per_client: dict[str, int] = {}  # numbers of requests, by client
        self.clients, self.requests, self.base_tokens = array("q"), array("q"), array("q")
        self.step = 0

    def copy(self) -> InBatch:
        """Return a copy that does not follow the batch."""
        other = InBatch(self.index)
        other.per_client, other.step = self.per_client.copy(), self.step
        other.clients, other.requests = self.clients[:], self.requests[:]
        other.base_tokens = self.base_tokens[:]
        return other

    def same(self, other: InBatch) -> bool:
        """Return whether both have the same clients with the same requests and context."""
        mine = self.clients, self.requests, self.base_tokens
        return mine == (other.clients, other.requests, other.base_tokens)

    def decoding(self) -> dict[str, Decoding]:
        """Return each client's part in the step ``step``."""
        bases = zip(self.per_client.items(), self.base_tokens, strict=True)
        return {
            client: Decoding(count, base + count * self.step) for (client, count), base in bases
        }

    def add(self, client: str, base_tokens: int) -> None:
        number = self.index.setdefault(client, len(self.index))
        count = self.per_client[client] = self.per_client.get(client, 0) + 1
        if count == 1:
            self.clients.append(number)
            self.requests.append(1)
            self.base_tokens.append(base_tokens)
        else:
            place = self.clients.index(number)
            self.requests[place] = count
            self.base_tokens[place] += base_tokens

    def remove(self, client: str, base_tokens: int) -> None:
        place = self.clients.index(self.index[client])
        count = self.per_client[client] = self.per_client[client] - 1
        if count:
            self.requests[place] = count
            self.base_tokens[place] -= base_tokens
        else:
            del self.per_client[client]
            del self.clients[place], self.requests[place], self.base_tokens[place]


class Stretches:
    """The stretches of the block that a log is filling, whose rows are not yet made."""

    def __init__(self) -> None:
        self._heads = bytearray()  # packed, because objects would be numerous and long unused
        self._clients, self._requests, self._base_tokens = array("q"), array("q"), array("q")

    def add(self, row: int, worker: int, stretch: Stretch, batch: InBatch) -> int:
        """Add a stretch whose rows begin at ``row``; return the number of its rows."""
        count, steps = len(batch.clients), stretch.steps
        self._heads += HEAD.pack(
            row, count, worker, stretch.start_ps, stretch.end_ps, stretch.growth_ps, steps,
            stretch.context_tokens, stretch.fixed_ps * steps, batch.step,
        )  # fmt: skip
        self._clients += batch.clients
        self._requests += batch.requests
        self._base_tokens += batch.base_tokens
        return count

    def among(self, others: Ints) -> Ints:
        """Return a block of rows: those of the stretches, and ``others`` in the remaining rows.

        The result is built column by column, as blocks are kept. The stretches are then removed.
        """
        if not self._heads:
            return others
        heads = np.frombuffer(bytes(self._heads), np.int64).reshape(-1, HEAD_COLUMNS)
        first, count = heads[:, 0], heads[:, 1]
        at = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        own = np.zeros(len(others) + len(at), np.bool_)
        own[at] = True
        apart = ~own
        table = np.empty((others.shape[1], len(own)), np.int64)
        for column, values, between in zip(table, self._columns(heads), others.T, strict=True):
            column[own], column[apart] = values, between
        for part in (self._heads, self._clients, self._requests, self._base_tokens):
            del part[:]
        rows: Ints = table.T
        return rows

    def _columns(self, heads: Ints) -> tuple[Ints | int, ...]:
        _, count, worker, start, end, growth, steps, context, fixed_ps, step = heads.T
        begin, each = np.cumsum(count) - count, partial(np.repeat, repeats=count)
        client, requests, base_tokens = (
            np.array(part, np.int64) for part in (self._clients, self._requests, self._base_tokens)
        )
        read = base_tokens * each(steps) + requests * each(steps * step + steps * (steps - 1) // 2)
        size, in_all = np.add.reduceat(requests, begin), np.add.reduceat(read, begin)
        upto = shares_upto(each(fixed_ps), _running(requests, begin, count), each(size))
        reading_ps = each(end - start - fixed_ps)
        upto += shares_upto(reading_ps, _running(read, begin, count), each(in_all))
        gpu_ps = np.diff(upto, prepend=0)
        gpu_ps[begin] = upto[begin]
        return (
            each(worker), client, each(start), each(end), each(steps), each(growth), each(size),
            each(context), 0, 0, 0, 0, each(steps) * requests, gpu_ps,
        )  # fmt: skip


def _running(values: Ints, begin: Ints, count: Ints) -> Ints:
    """Return the cumulative sums within each stretch."""
    total = np.cumsum(values)
    sums: Ints = total - np.repeat((total - values)[begin], count)
    return sums


def shares_upto(total: Ints, upto: Ints, whole: Ints) -> Ints:
    """Return ``total * upto // whole`` exactly for any product, with 0 <= upto <= whole."""
    if whole.max(initial=0) >= EXACT or np.abs(total).max(initial=0) >= EXACT * 2**10:
        wide: Ints = (total.astype(object) * upto // whole).astype(np.int64)
        return wide
    # The float is so close that the remainder, which is exact modulo 2**64, is its error.
    guess = (total * (upto / whole)).astype(np.int64)
    guess += (total * upto - guess * whole) // whole
    return guess
