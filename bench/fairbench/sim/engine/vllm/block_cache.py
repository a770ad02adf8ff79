"""vLLM's KV memory: blocks, a prefix cache of full blocks, and the free list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from fairbench.core import Prompt
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.vllm.block_tree import (
    Block,
    BlockNode,
    BlockTree,
    Waiter,
    file,
    prefix_of,
    unfile,
)


class BlockCache:
    """A cache of ``blocks`` blocks of ``block_size`` tokens.

    ``on_evict(prefix, tokens)`` hears of evictions,
    in one call for all blocks of a prefix that go in a row.

    vLLM's free list has the blank blocks at its head and the cached ones behind them, least
    recently used first: what is given back full goes to the tail, what is not to the head. So the
    blank ones need only be counted. Without ``prefix_caching`` all are blank.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        *,
        prefix_caching: bool = True,
    ) -> None:
        self.blocks = self.blank = blocks
        self.shared = 0  # users of blocks, without the first of each
        self.block_size = block_size
        self.on_evict = on_evict
        self.prefix_caching = prefix_caching
        self.tree = BlockTree(block_size)
        self.root = self.tree.root
        self.unused: OrderedDict[Block, None] = OrderedDict()  # cached, next to be evicted first
        self.on_moved: Callable[[Waiter], None] | None = None
        self.refresh_stamp = 0

    # In tokens, for whoever knows nothing of blocks.

    @property
    def capacity(self) -> int:
        """The size of the whole memory, in tokens."""
        return self.blocks * self.block_size

    @property
    def free(self) -> int:
        """Empty tokens of memory."""
        return self.blank * self.block_size

    @property
    def evictable(self) -> int:
        """Cached tokens that no request uses."""
        return len(self.unused) * self.block_size

    def abandon(self) -> None:
        """Remove every node at the end of a run, because Python frees linked nodes slowly."""
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            node.parent = None
            for block in node.blocks:
                block.node = None
            node.children.clear()
            node.blocks.clear()
            node.waiters = node.awaited = None
        self.unused.clear()

    # Blocks.

    @property
    def free_blocks(self) -> int:
        """Blocks that a request could get."""
        return self.blank + len(self.unused)

    def take(self, count: int) -> list[Block]:
        """Take blocks for a request, empty ones first. Enough blocks must be available."""
        taken = [Block() for _ in range(min(count, self.blank))]
        self.blank -= len(taken)
        end = top = self.root  # of the stretch that is evicted: a prompt's blocks go last to first
        tokens = 0
        while len(taken) < count:
            block, _ = self.unused.popitem(last=False)
            if (node := self._evict(block)) is not None:
                if node is not top.parent:
                    self._report(end, tokens)
                    end, tokens = node, 0
                top, tokens = node, tokens + self.block_size
            block.users = 1
            taken.append(block)
        self._report(end, tokens)
        return taken

    def use(self, block: Block) -> None:
        """Count another request that uses a cached block."""
        if block.users:
            self.shared += 1
        else:
            del self.unused[block]
        block.users += 1

    def give_back(self, blocks: Iterable[Block]) -> None:
        """Release a request's blocks, given from the last to the first."""
        for block in blocks:
            block.users -= 1
            if block.users:
                self.shared -= 1
            elif block.node is None:
                self.blank += 1
            else:
                self.unused[block] = None

    def store(
        self, node: BlockNode, prompt: Prompt, place: Place, blocks: Iterable[Block]
    ) -> tuple[BlockNode, Place]:
        """Index full blocks that follow ``node`` in a prompt; return the end of the last.

        ``place`` is where ``node`` ends in the prompt; the end is a node and a place as well.
        """
        for block in blocks:
            child, place = self.tree.store(node, prompt, place, block)
            if node.awaited and len(child.blocks) == 1 and (group := node.awaited.get(child.key)):
                for waiter in list(group):
                    self._moved(waiter)
            node = child
        return node, place

    def _report(self, end: BlockNode, tokens: int) -> None:
        """Tell ``on_evict`` that the last ``tokens`` tokens up to ``end`` were evicted, if any."""
        if tokens and self.on_evict is not None:
            self.on_evict(prefix_of(end), tokens)

    def _evict(self, block: Block) -> BlockNode | None:
        """Overwrite ``block``. Returns its node if no other block holds the same tokens."""
        node = self.tree.drop(block)
        if node is None:
            return None
        parent = node.parent
        assert parent is not None
        for waiter in list(node.waiters or ()):
            unfile(waiter, self.block_size)
            file(waiter, parent, self.block_size)
            self._moved(waiter)
        return node

    # The interface for a waiting queue (a PrefixCache).

    def descend(
        self, node: BlockNode, prompt: Prompt, place: Place, limit: int
    ) -> tuple[BlockNode, Place]:
        """Return the longest cached whole-block prefix from ``node``, up to ``limit`` tokens."""
        return self.tree.descend(node, prompt, place, limit)

    def match(self, prompt: Prompt, limit: int) -> tuple[BlockNode, Place]:
        """Call ``descend`` from the root."""
        return self.tree.descend(self.root, prompt, (0, 0), limit)

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return how many tokens of a prompt whole blocks cache, at most ``limit``."""
        return self.match(prompt, limit)[0].depth

    def touch(self, node: BlockNode) -> None:
        """Do nothing: in vLLM a look-up does not count as use."""

    def refresh(self, waiters: Iterable[Waiter]) -> None:
        """Match these waiting requests."""
        self.refresh_stamp += 1
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: Waiter) -> None:
        """Match a waiting request, from the end of its last match if any."""
        start, place = self.root, (0, 0)
        if waiter.node is not None:
            start, place = waiter.node, waiter.place
            unfile(waiter, self.block_size)
        node, _ = self.tree.descend(start, waiter.prompt, place, waiter.total - 1)
        file(waiter, node, self.block_size)

    def detach(self, waiter: Waiter) -> None:
        """Forget a waiting request."""
        unfile(waiter, self.block_size)
        waiter.node = None

    def _moved(self, waiter: Waiter) -> None:
        if self.on_moved is not None:
            self.on_moved(waiter)
