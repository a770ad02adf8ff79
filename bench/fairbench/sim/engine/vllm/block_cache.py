"""vLLM's KV memory: blocks, a prefix cache of full blocks, and the free list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from fairbench.core import Prompt, Request
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

    knows_clients = False  # whether ``claim`` and ``retain`` do anything, and so need be called

    def __init__(
        self,
        blocks: int,
        block_size: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        *,
        prefix_caching: bool = True,
        node_type: type[BlockNode] = BlockNode,
    ) -> None:
        self.blocks = self.blank = blocks
        self.shared = 0  # users of blocks, without the first of each
        self.block_size = block_size
        self.on_evict = on_evict
        self.prefix_caching = prefix_caching
        self.tree = BlockTree(block_size, node_type)
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

    @property
    def tells_evictions(self) -> bool:
        """Whether each eviction counts when it happens, and not only in the end."""
        return self.on_evict is not None

    def take(self, count: int, client: str = "") -> list[Block]:
        """Take blocks for a request, empty ones first. Enough blocks must be available."""
        if count > self.blank:
            self._make_blank(count - self.blank, client)
        self.blank -= count
        return [Block() for _ in range(count)]

    def _make_blank(self, count: int, client: str) -> None:
        """Overwrite the least recently used blocks for a request of the client."""
        gone = [self._evict(self.unused.popitem(last=False)[0]) for _ in range(count)]
        self.blank += count
        self._report(gone)

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

    def claim(self, node: BlockNode, request: Request) -> None:
        """Record that the request uses the path to ``node`` from now on."""

    def retain(self, node: BlockNode, request: Request) -> None:
        """Record that the request has finished, and that its path ends at ``node``."""

    def _report(self, gone: Iterable[BlockNode | None]) -> None:
        """Tell ``on_evict`` of evicted nodes; None is a block whose tokens another one holds."""
        if self.on_evict is None:
            return
        end = top = self.root  # of the stretch that is evicted: a prompt's blocks go last to first
        for node in gone:
            if node is None:
                continue
            if node is not top.parent:
                if top is not self.root:
                    self.on_evict(prefix_of(end), end.depth - top.depth + self.block_size)
                end = node
            top = node
        if top is not self.root:
            self.on_evict(prefix_of(end), end.depth - top.depth + self.block_size)

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
