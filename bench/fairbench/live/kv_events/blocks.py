"""KV blocks: conversion of a worker's blocks, named by hashes, to the prompts of a router."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fairbench.core import Prompt
from fairbench.live.kv_events.wire import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
)
from fairbench.schedulers.token_pages import segments_of

# A router should not count on blocks in host memory or on disk.
MEDIA = (None, "GPU")
Key = tuple[int | None, BlockHash]  # the group of layers of a block, and its hash


@dataclass(slots=True, eq=False)
class _StoredRun:
    """Blocks that were stored together. ``ids`` are all tokens up to the end of the run."""

    ids: array[int]
    start: int
    hashes: Sequence[BlockHash]
    block_size: int

    def end_of(self, index: int) -> int:
        """Return the tokens up to the end of block ``index``; -1 is the start of the run."""
        return min(self.start + (index + 1) * self.block_size, len(self.ids))

    def prefix(self, block_hash: BlockHash) -> array[int]:
        """Return all tokens up to the end of a block."""
        return self.ids[: self.end_of(self.hashes.index(block_hash))]


class BlockIndex:
    """A worker's GPU cache according to its events: block hash -> position in a prompt.

    ``on_evict(prefix, tokens)`` is called when the last ``tokens`` of a prefix are evicted.
    ``on_clear()`` is called when the cache is emptied or its content becomes unknown.
    """

    def __init__(
        self, on_evict: Callable[[Prompt, int], None], on_clear: Callable[[], None]
    ) -> None:
        self._on_evict = on_evict
        self._on_clear = on_clear
        self._runs: dict[Key, _StoredRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.clear()
            elif event.medium not in MEDIA:
                continue
            elif isinstance(event, BlockStored):
                self._store(event)
            else:
                self._remove(event)

    def clear(self) -> None:
        """Forget all blocks, and report their eviction."""
        self._runs.clear()
        self._on_clear()

    def _store(self, event: BlockStored) -> None:
        parent, group = event.parent_block_hash, event.group_idx
        if parent is None:
            ids = array("I")
        elif (run := self._runs.get((group, parent))) is not None:
            ids = run.prefix(parent)
        else:
            return  # a descendant of blocks stored before we listened: its prompt is unknown
        start = len(ids)
        ids.extend(event.token_ids)
        stored = _StoredRun(ids, start, event.block_hashes, event.block_size)
        # Shared, because with blocks of one token there are as many blocks as tokens.
        self._runs.update(dict.fromkeys([(group, name) for name in event.block_hashes], stored))

    def _remove(self, event: BlockRemoved) -> None:
        """Remove blocks; a cache drops leaves first, so each run loses its end."""
        removed: dict[_StoredRun, set[BlockHash]] = {}
        for block_hash in event.block_hashes:
            if (run := self._runs.pop((event.group_idx, block_hash), None)) is not None:
                removed.setdefault(run, set()).add(block_hash)
        for run, hashes in removed.items():
            gone = [index for index, name in enumerate(run.hashes) if name in hashes]
            self._evict(run, run.end_of(gone[0] - 1), run.end_of(gone[-1]))

    def _evict(self, run: _StoredRun, start: int, end: int) -> None:
        """Report tokens ``start`` to ``end`` as evicted, in whole pages whose end was evicted."""
        pages = segments_of(run.ids)
        ends = [0, *accumulate(page.length for page in pages)]
        first, last = bisect_right(ends, start), bisect_right(ends, end)
        if first < last:
            self._on_evict(pages[: last - 1], ends[last - 1] - ends[first - 1])
