"""Block tables: the blocks of a running sequence, and which of them are indexed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairbench.core import Prompt
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.vllm.block_cache import BlockCache, held_by
from fairbench.sim.engine.vllm.block_tree import BlockNode, RunCopy
from fairbench.sim.sequence import Sequence


@dataclass(slots=True)
class Table:
    """The ``blocks`` blocks of a sequence, of which those up to ``node`` are stored.

    The node ends at ``place`` of the prompt, which includes all future outputs.
    """

    prompt: Prompt
    node: BlockNode
    place: Place
    blocks: int


class BlockTables:
    """The block tables of running requests.

    As in vLLM, a block is stored when a step is scheduled that will fill it, so that other requests
    may find it in the same step.
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
        """Allocate blocks for the first ``tokens`` of a prompt; False if too few are free."""
        cached = [each.copies[0] for each in node.path()]
        whole = sequence.total if self._reserve_full else tokens
        if self._wanted(whole, cached, alone=alone) > self._cache.free_blocks:
            return False
        for copy in cached:
            self._cache.use(copy, sequence)
        if self._cache.knows_clients:
            self._cache.claim(node, sequence.request)
        prompt = (*sequence.request.prompt, sequence.output)
        table = Table(prompt, node, place, node.depth // self._size)
        self._tables[sequence] = table
        self._take(sequence, table, tokens)
        self.store_full(sequence, tokens)
        return True

    def would_fit(
        self, sequence: Sequence, node: BlockNode, without: Iterable[Sequence], *, alone: bool
    ) -> bool:
        """Return whether a whole prompt cached to ``node`` would fit without those sequences."""
        cached = [each.copies[0] for each in node.path()]
        freed, users = 0, Counter[RunCopy]()
        for one in without:
            freed += self._unstored(self._tables[one])
            users.update(self.copies(one))
        for copy in cached:
            users.pop(copy, None)  # the new request would use it
        freed += sum(copy.node.blocks for copy, n in users.items() if n == len(copy.users))
        wanted = self._wanted(sequence.total, cached, alone=alone)
        return wanted <= self._cache.free_blocks + freed

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Return how many blocks a sequence lacks to hold ``tokens`` tokens."""
        return max(-(-tokens // self._size) - self._tables[sequence].blocks, 0)

    def grow(self, sequence: Sequence, tokens: int, known: int) -> bool:
        """Allocate blocks for the first ``tokens`` tokens. Return False if too few are free.

        Of the full blocks, those whose tokens are among the first ``known`` ones are stored.
        """
        if self.missing(sequence, tokens) > self._cache.free_blocks:
            return False
        table = self._tables[sequence]
        self._take(sequence, table, tokens)
        self.store_full(sequence, known)
        return True

    def add_block(self, sequence: Sequence) -> None:
        """Add a block, which must be available, to a sequence."""
        self._cache.take(1, sequence)
        self._tables[sequence].blocks += 1

    def store_block(self, sequence: Sequence) -> None:
        if self._cache.prefix_caching:
            self._store(sequence, self._tables[sequence], 1)

    def store_full(self, sequence: Sequence, tokens: int | None = None) -> None:
        """Store the full blocks of the first ``tokens`` tokens, by default all blocks but one."""
        table = self._tables[sequence]
        full = table.blocks - 1 if tokens is None else tokens // self._size
        more = full - table.node.depth // self._size
        if self._cache.prefix_caching and more > 0:
            self._store(sequence, table, more)

    def retain(self, sequence: Sequence) -> None:
        """Record that a sequence has finished, before its blocks are freed."""
        if self._cache.knows_clients:
            self._cache.retain(self._tables[sequence].node, sequence.request)

    def give_back(self, sequence: Sequence) -> None:
        """Free the blocks of an ended or preempted sequence; the last is evicted first."""
        table = self._tables.pop(sequence)
        self._cache.give_back(sequence, table.node, self._unstored(table))

    def shared_tokens(self, apart: Iterable[Sequence]) -> int:
        """Return shared-block tokens, counted per user after the first, without ``apart``."""
        shared = self._cache.shared
        others = Counter(copy for sequence in apart for copy in self.copies(sequence))
        for copy, count in others.items():
            shared -= min(count, len(copy.users) - 1) * copy.node.blocks
        return shared * self._size

    def copies(self, sequence: Sequence) -> Iterator[RunCopy]:
        """Yield the stored blocks of a running sequence in runs, the last first."""
        return held_by(sequence, self._tables[sequence].node)

    def blocks(self, sequence: Sequence) -> int:
        return self._tables[sequence].blocks

    def __len__(self) -> int:
        return len(self._tables)

    def _wanted(self, tokens: int, cached: Iterable[RunCopy], *, alone: bool) -> int:
        """Return how many free blocks a prompt of ``tokens`` tokens needs, partly ``cached``."""
        used = sum(copy.node.blocks for copy in cached if copy.users)
        return -(-tokens // self._size) - used + (0 if alone else self._watermark)

    def _unstored(self, table: Table) -> int:
        return table.blocks - table.node.depth // self._size

    def _take(self, sequence: Sequence, table: Table, tokens: int) -> None:
        short = -(-tokens // self._size) - table.blocks
        if short > 0:
            self._cache.take(short, sequence)
            table.blocks += short

    def _store(self, sequence: Sequence, table: Table, blocks: int) -> None:
        table.node, table.place = self._cache.store(
            sequence, table.node, table.prompt, table.place, blocks
        )
