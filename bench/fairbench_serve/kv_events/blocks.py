"""KV blocks: conversion of a worker's blocks, named by hashes, to the prompts of a router."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from fairbench.core import Prompt
from fairbench.live.kv_event_wire import (
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


# A run of at least this many tokens does not grow. A run stays in memory as long as any of its
# blocks, so this bounds the removed tokens that a block keeps.
RUN_TOKENS = 256


@dataclass(slots=True, eq=False)
class _Run:
    """Blocks that follow each other, after the first ``start`` tokens of its ``parent``.

    ``ids`` are the tokens of these blocks only, ``block_size`` for each of ``hashes``.
    """

    parent: _Run | None
    start: int
    block_size: int
    ids: array[int] = field(default_factory=lambda: array("I"))
    hashes: list[BlockHash] = field(default_factory=list)

    def end_of(self, index: int) -> int:
        """Return the tokens up to the end of block ``index``; -1 is the start of the run."""
        return self.start + min((index + 1) * self.block_size, len(self.ids))

    def may_grow(self, parent: BlockHash | None, block_size: int) -> bool:
        """Return whether a block after ``parent`` may be added at the end of this run."""
        fits = len(self.ids) == block_size * len(self.hashes) < RUN_TOKENS
        return fits and self.block_size == block_size and self.hashes[-1] == parent

    def prefix(self, end: int) -> array[int]:
        """Return all tokens of the prompt up to ``end``."""
        parts: list[array[int]] = []
        run: _Run | None = self
        while run is not None:
            parts.append(run.ids[: end - run.start])
            end, run = run.start, run.parent
        ids = array("I")
        for part in reversed(parts):
            ids.extend(part)
        return ids


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
        self._runs: dict[Key, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def apply(self, events: Sequence[Event]) -> None:
        removed: list[Key] = []  # in successive events: SGLang removes each block in its own event
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self._remove(removed)
                self.clear()
            elif event.medium not in MEDIA:
                continue
            elif isinstance(event, BlockRemoved):
                removed += [(event.group_idx, name) for name in event.block_hashes]
            else:
                self._remove(removed)
                self._store(event)
        self._remove(removed)

    def clear(self) -> None:
        """Forget all blocks, and report their eviction."""
        self._runs.clear()
        self._on_clear()

    def _store(self, event: BlockStored) -> None:
        parent, group, size = event.parent_block_hash, event.group_idx, event.block_size
        run, start = None, 0
        if size <= 0:
            return
        if parent is not None:
            run = self._runs.get((group, parent))
            if run is None:
                return  # a descendant of blocks stored before we listened: its prompt is unknown
            start = run.end_of(run.hashes.index(parent))
        for index, name in enumerate(event.block_hashes):
            ids = event.token_ids[index * size : (index + 1) * size]
            if run is None or not run.may_grow(parent, size):
                run = _Run(run, start, size)
            run.ids.extend(ids)
            run.hashes.append(name)
            self._runs[group, name] = run
            parent, start = name, start + len(ids)

    def _remove(self, keys: list[Key]) -> None:
        """Remove blocks, and empty the list. A chain of removed runs is reported once."""
        removed: dict[_Run, set[BlockHash]] = {}
        for key in keys:
            if (run := self._runs.pop(key, None)) is not None:
                removed.setdefault(run, set()).add(key[1])
        keys.clear()
        ends: dict[_Run | None, tuple[int, int]] = {}
        for run, hashes in removed.items():
            gone = [index for index, name in enumerate(run.hashes) if name in hashes]
            ends[run] = run.end_of(gone[0] - 1), run.end_of(gone[-1])
        for run in sorted(removed, key=lambda run: run.start, reverse=True):
            if run not in ends:
                continue
            start, end = ends.pop(run)
            above = run
            while start == above.start and ends.get(above.parent, (0, -1))[1] == start:
                assert above.parent is not None
                above = above.parent
                start, _ = ends.pop(above)
            self._evict(run.prefix(end), start)

    def _evict(self, ids: array[int], start: int) -> None:
        """Report the tokens from ``start`` on as evicted, in whole pages whose end was evicted."""
        pages = segments_of(ids)
        ends = [0, *accumulate(page.length for page in pages)]
        first = bisect_right(ends, start)
        if first < len(ends):
            self._on_evict(pages, len(ids) - ends[first - 1])
