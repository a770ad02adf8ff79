"""Block tables: the blocks of a running sequence, and which of them are indexed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairbench.core import Request
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import Block, BlockNode
from fairbench.sim.sequence import Sequence


class Table:
    """The blocks of one sequence. Blocks up to ``node``, which ends at ``place``, are stored."""

    __slots__ = ("blocks", "node", "place", "prompt", "request")

    def __init__(self, sequence: Sequence, node: BlockNode, place: Place) -> None:
        self.request: Request = sequence.request
        self.prompt = (*self.request.prompt, sequence.output)  # with all of the outputs to come
        self.blocks: list[Block] = []
        self.node = node
        self.place = place


class BlockTables:
    """The block tables of running requests.

    As in vLLM, a block is stored when a step is scheduled that will
    fill it, so that others may find it in that very step.
    """

    def __init__(self, cache: BlockCache, *, reserve_full: bool, watermark_blocks: int) -> None:
        self._cache = cache
        self._size = cache.block_size
        self._reserve_full = reserve_full
        self._watermark = watermark_blocks
        self._tables: dict[Sequence, Table] = {}

    def admit(
        self, sequence: Sequence, node: BlockNode, place: Place, tokens: int, *, alone: bool
    ) -> bool:
        """Allocate blocks for the first ``tokens`` of a prompt that is cached up to ``node``.

        Return False and change nothing if too few blocks are free. ``alone``: nothing else is
        running.
        """
        cached = _path_blocks(node)
        unused = sum(not block.users for block in cached)
        whole = sequence.total if self._reserve_full else tokens
        wanted = -(-whole // self._size) - len(cached) + unused
        if not alone:
            wanted += self._watermark
        if wanted > self._cache.free_blocks:
            return False
        for block in cached:
            self._cache.use(block)
        if self._cache.knows_clients:
            self._cache.claim(node, sequence.request)
        table = Table(sequence, node, place)
        table.blocks = cached
        self._tables[sequence] = table
        self._extend(table, tokens)
        return True

    def would_fit(
        self, sequence: Sequence, node: BlockNode, without: Iterable[Sequence], *, alone: bool
    ) -> bool:
        """Return whether a whole prompt cached to ``node`` would fit without those sequences."""
        cached = _path_blocks(node)
        users = Counter(block for one in without for block in self._tables[one].blocks)
        for block in cached:
            users.pop(block, None)  # it would be used by the new one
        freed = sum(count == block.users for block, count in users.items())
        unused = sum(not block.users for block in cached)
        wanted = -(-sequence.total // self._size) - len(cached) + unused
        return wanted + (0 if alone else self._watermark) <= self._cache.free_blocks + freed

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Return how many blocks a sequence lacks to hold ``tokens`` tokens."""
        return max(-(-tokens // self._size) - len(self._tables[sequence].blocks), 0)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate blocks for the first ``tokens`` tokens. Return False if too few are free."""
        if self.missing(sequence, tokens) > self._cache.free_blocks:
            return False
        self._extend(self._tables[sequence], tokens)
        return True

    def add_block(self, sequence: Sequence) -> None:
        """Add a block, which must be available, to a sequence."""
        self._tables[sequence].blocks += self._cache.take(1, sequence.request.client)

    def store_block(self, sequence: Sequence) -> None:
        """Store the sequence's next full block."""
        if self._cache.prefix_caching:
            table = self._tables[sequence]
            self._store(table, table.node.depth // self._size + 1)

    def retain(self, sequence: Sequence) -> None:
        """Record that a sequence has finished, before its blocks are freed."""
        if self._cache.knows_clients:
            self._cache.retain(self._tables[sequence].node, sequence.request)

    def give_back(self, sequence: Sequence) -> None:
        """Free the blocks of an ended or preempted sequence; the last is evicted first."""
        self._cache.give_back(reversed(self._tables.pop(sequence).blocks))

    def shared_tokens(self, apart: Iterable[Sequence]) -> int:
        """Return shared-block tokens, counted per user after the first, without ``apart``."""
        shared = self._cache.shared
        others = Counter(block for sequence in apart for block in self._tables[sequence].blocks)
        for block, count in others.items():
            shared -= min(count, block.users - 1)
        return shared * self._size

    def blocks(self, sequence: Sequence) -> list[Block]:
        """Return the blocks of a running sequence, first to last."""
        return self._tables[sequence].blocks

    def __len__(self) -> int:
        return len(self._tables)

    def _extend(self, table: Table, tokens: int) -> None:
        short = -(-tokens // self._size) - len(table.blocks)
        if short > 0:
            table.blocks += self._cache.take(short, table.request.client)
        if self._cache.prefix_caching:
            self._store(table, tokens // self._size)

    def _store(self, table: Table, until: int) -> None:
        """Index the first ``until`` blocks that are not yet indexed."""
        full = table.blocks[table.node.depth // self._size : until]
        table.node, table.place = self._cache.store(table.node, table.prompt, table.place, full)


def _path_blocks(node: BlockNode) -> list[Block]:
    """Return the blocks vLLM would use for the prefix up to ``node``, first to last."""
    found: list[Block] = []
    while node.parent is not None:
        found.append(node.blocks[0])
        node = node.parent
    found.reverse()
    return found
