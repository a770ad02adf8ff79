"""vLLM's KV memory: blocks, a prefix cache of full blocks, and the free list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fairbench.core import Prompt, Request
from fairbench.sim.engine.vllm.block_keys import prefix_of
from fairbench.sim.engine.vllm.block_tree import BlockNode, BlockTree, RunCopy


class BlockCache(BlockTree):
    """A cache of ``blocks`` blocks of ``block_size`` tokens, blank or part of a run of the tree.

    ``on_evict(prefix, tokens)`` receives evictions, in one call for successive blocks of a prefix.

    vLLM's free list has blank blocks at its head and cached blocks behind them, least recently used
    first: full blocks are returned to the tail, others to the head. The blank blocks only need to
    be counted. Without ``prefix_caching`` all blocks are blank.
    """

    knows_clients = False  # whether ``claim`` and ``retain`` have an effect, and so must be called

    def __init__(
        self,
        blocks: int,
        block_size: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        *,
        prefix_caching: bool = True,
        node_type: type[BlockNode] = BlockNode,
    ) -> None:
        super().__init__(block_size, node_type)
        self.blocks = self.blank = blocks
        self.unused_blocks = 0  # unused cached blocks
        self.shared = 0  # users of blocks, not counting the first user of each
        self.on_evict = on_evict
        self.prefix_caching = prefix_caching
        self._end = RunCopy(self.root, set())  # links from the last unused copy to the first
        self._end.before = self._end.after = self._end

    # Amounts in tokens, for callers that do not know blocks.

    @property
    def capacity(self) -> int:
        return self.blocks * self.block_size

    @property
    def free(self) -> int:
        return self.blank * self.block_size

    @property
    def evictable(self) -> int:
        return self.unused_blocks * self.block_size

    def abandon(self) -> None:
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            node.parent = None
            for copy in node.copies:
                copy.before = copy.after = None
            node.children.clear()
            node.copies.clear()
            node.waiters = node.awaited = None
        self._end.before = self._end.after = self._end

    # Blocks.

    @property
    def free_blocks(self) -> int:
        """Blocks that a request could get."""
        return self.blank + self.unused_blocks

    def unused(self) -> Iterator[RunCopy]:
        """Yield the unused copies in the order of their eviction."""
        copy = self._end.after
        while copy is not None and copy is not self._end:
            yield copy
            copy = copy.after

    @property
    def tells_evictions(self) -> bool:
        """Return whether each eviction is reported when it happens, and not only at the end."""
        return self.on_evict is not None

    def claim(self, node: BlockNode, request: Request) -> None:
        """Record that the request uses the path to ``node`` from now on."""

    def retain(self, node: BlockNode, request: Request) -> None:
        """Record that the request has finished, and that its path ends at ``node``."""

    def take(self, count: int, owner: object = None) -> None:
        """Take blocks for ``owner``, empty ones first. Enough blocks must be available."""
        blank = min(count, self.blank)
        self.blank -= blank
        count -= blank
        # blocks evicted in succession: a prompt's blocks, last to first
        end: tuple[Prompt, int] = ((), 0)
        above: BlockNode | None = (
            None  # parent of the last evicted node, at which the succession continues
        )
        tokens = 0
        while count:
            copy = self._end.after
            assert copy is not None
            node = copy.node
            blocks = min(count, node.blocks)
            count -= blocks
            if len(node.copies) == 1:
                if node is not above:
                    self._report(end, tokens)
                    end, tokens = (node.prompt, node.depth), 0
                above, tokens = node.parent, tokens + blocks * self.block_size
            self._evict(copy, blocks)
        self._report(end, tokens)

    def use(self, copy: RunCopy, owner: object) -> None:
        """Count another request that uses a cached copy."""
        if copy.users:
            self.shared += copy.node.blocks
        else:
            copy.unlink()
            self.unused_blocks -= copy.node.blocks
        copy.users.add(owner)

    def give_back(self, owner: object, node: BlockNode, blank: int) -> None:
        """Release a request's blocks: ``blank`` ones that are not stored, and those to ``node``."""
        self.blank += blank
        for copy in held_by(owner, node):
            copy.users.remove(owner)
            if copy.users:
                self.shared -= copy.node.blocks
            else:
                last = self._end.before
                assert last is not None
                copy.link(last, self._end)
                self.unused_blocks += copy.node.blocks

    def _evict(self, copy: RunCopy, blocks: int) -> None:
        """Overwrite the last ``blocks`` blocks of an unused copy."""
        node = copy.node
        self.unused_blocks -= blocks
        alone = len(node.copies) == 1
        if alone and blocks < node.blocks:
            self.shorten(node, blocks)
            return
        if blocks < node.blocks:
            self.split(node, node.blocks - blocks)
        copy.unlink()
        node.copies.remove(copy)
        if alone:
            self.remove(node)

    def _report(self, end: tuple[Prompt, int], tokens: int) -> None:
        """Tell ``on_evict`` that the last ``tokens`` tokens up to ``end`` were evicted, if any."""
        if tokens and self.on_evict is not None:
            self.on_evict(prefix_of(*end), tokens)

    # The interface for a waiting queue (a PrefixCache), besides the tree's.

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        return self.match(prompt, limit)[0].depth

    def touch(self, node: BlockNode) -> None:
        """Do nothing: in vLLM a look-up does not count as use."""


def held_by(owner: object, node: BlockNode) -> Iterator[RunCopy]:
    """Yield the copies that ``owner`` holds of the path to ``node``, the last of them first."""
    for each in node.path():
        yield next(copy for copy in each.copies if owner in copy.users)
