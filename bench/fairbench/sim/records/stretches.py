"""Decode stretches as rows of the service log, made many at a time.

A row is what one client has of a stretch. Of a thousand clients hardly two requests in a batch are
of the same, so that most of a log are these rows: a stretch only notes who was in it, and rows are
worked out when a block of the log is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fairbench.sim.records.service_log import Stretch

Ints: TypeAlias = NDArray[np.int64]
EXACT = 2**50  # up to it ``shares_upto`` is exact in machine integers
HEAD_COLUMNS = 10
HEAD = Struct(f"{HEAD_COLUMNS}q")


@dataclass(slots=True)
class InBatch:
    """What each client has in a decode batch, in the same order: requests, and their context.

    That is ``base_tokens`` at the batch's step 0 and grows by a token a request and step; the
    stretch began at ``step``.
    """

    requests: Mapping[str, int]
    base_tokens: Mapping[str, int]
    step: int


class Stretches:
    """Those whose rows are left blank so far. ``index`` numbers the clients."""

    def __init__(self, index: Mapping[str, int]) -> None:
        self._index = index
        self._heads = bytearray()  # packed: as objects they would be many, and long unused
        self._clients: list[str] = []
        self._requests: list[int] = []
        self._base_tokens: list[int] = []

    def add(self, row: int, worker: int, stretch: Stretch, batch: InBatch) -> int:
        """One whose rows begin at ``row``: how many they are."""
        requests, steps = batch.requests, stretch.steps
        count = len(requests)
        self._heads += HEAD.pack(
            row, count, worker, stretch.start_ps, stretch.end_ps, stretch.growth_ps, steps,
            stretch.context_tokens, stretch.fixed_ps * steps, batch.step,
        )  # fmt: skip
        self._clients += requests
        self._requests += requests.values()
        self._base_tokens += batch.base_tokens.values()
        return count

    def fill(self, rows: Ints) -> None:
        """Fill the blank ones among the rows in, which are in the order of the service log."""
        if not self._heads:
            return
        heads = np.frombuffer(bytes(self._heads), np.int64).reshape(-1, HEAD_COLUMNS)
        first, count = heads[:, 0], heads[:, 1]
        begin = np.cumsum(count) - count
        stretch = np.repeat(np.arange(len(heads)), count)
        requests = np.array(self._requests, dtype=np.int64)
        _, _, worker, start, end, growth, steps, context, fixed_ps, step = heads[stretch].T
        read = (np.array(self._base_tokens, dtype=np.int64) + requests * step) * steps
        read += requests * (steps * (steps - 1) // 2)
        size = np.add.reduceat(requests, begin)[stretch]
        upto = shares_upto(fixed_ps, _running(requests, begin, stretch), size)
        upto += shares_upto(
            end - start - fixed_ps,
            _running(read, begin, stretch),
            np.add.reduceat(read, begin)[stretch],
        )
        gpu_ps = np.diff(upto, prepend=0)
        gpu_ps[begin] = upto[begin]
        client = np.fromiter(map(self._index.__getitem__, self._clients), np.int64, len(requests))
        none = np.zeros_like(requests)
        at = np.arange(len(requests)) + (first - begin)[stretch]
        columns = (
            worker, client, start, end, steps, growth, size, context,
            none, none, none, none, steps * requests, gpu_ps,
        )  # fmt: skip
        rows[at] = np.column_stack(columns)
        for column in (self._heads, self._clients, self._requests, self._base_tokens):
            column.clear()


def _running(values: Ints, begin: Ints, stretch: Ints) -> Ints:
    """Running sums within each stretch."""
    total = np.cumsum(values)
    sums: Ints = total - (total - values)[begin][stretch]
    return sums


def shares_upto(total: Ints, upto: Ints, whole: Ints) -> Ints:
    """``total * upto // whole``, exact whatever the product, for 0 <= upto <= whole."""
    if whole.max(initial=0) >= EXACT or np.abs(total).max(initial=0) >= EXACT * 2**10:
        wide: Ints = (total.astype(object) * upto // whole).astype(np.int64)
        return wide
    # A float is so close that the remainder, which is exact modulo 2**64, tells how far it is off.
    guess = (total * (upto / whole)).astype(np.int64)
    guess += (total * upto - guess * whole) // whole
    return guess
