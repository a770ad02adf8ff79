"""vLLM's KV memory where an eviction policy chooses the block to overwrite.

A policy chooses among the nodes of the block tree that have an unused block and no continuation.
vLLM keeps several blocks of the same tokens, each with its own last use. A look-up finds one of
them, so that the others rank as if nobody had used their tokens, and a node with further blocks
may lose one although its continuation is cached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, cast

from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.schedulers.eviction.policy import Access, EvictionPolicy
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.claims import Claims
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import Block, BlockNode, Key, Waiter
from fairbench.sim.records.memory_log import WorkerMemoryLog

NEVER: Access = (0, 0, 0)


class ClaimedBlockNode(BlockNode):
    """A prefix with the clients that claim its last part, a ``Claimed``.

    ``idle`` are its blocks that no request uses, each with the time of its last use, oldest first.
    """

    __slots__ = ("claimed_below", "holders", "idle", "keep_s", "listed_for", "number", "uses")

    def __init__(
        self, parent: Self | None, key: Key, depth: int, prompt: Prompt, end: Place
    ) -> None:
        super().__init__(parent, key, depth, prompt, end)
        self.idle: dict[Block, Access] = {}
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()
        self.uses = 0
        self.keep_s = 0.0
        self.number = 0

    @property
    def last_access(self) -> Access:
        """When the block was last used that goes first."""
        return next(iter(self.idle.values()), NEVER)


class ClientBlockCache(BlockCache):
    """A cache of ``blocks`` blocks of ``block_size`` tokens, from which ``policy`` evicts.

    Cached tokens of the client ``others``, which the policy does not know, go before all others.
    """

    knows_clients = True
    tells_evictions = True  # in the memory log

    def __init__(
        self,
        blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        log: WorkerMemoryLog,
        others: str | None = None,
        *,
        prefix_caching: bool = True,
    ) -> None:
        form = ClaimedBlockNode
        super().__init__(blocks, block_size, prefix_caching=prefix_caching, node_type=form)
        self.policy = policy
        self.claims: Claims[ClaimedBlockNode] = Claims(policy, log, self, others)
        self.residency = self.claims.residency
        self._log = log
        self._clock = 0  # counts the blocks that became unused
        self._created = 0
        self._gone: list[BlockNode | None] = []  # by the eviction under way

    # Memory of clients.

    def take(self, count: int, client: str = "") -> list[Block]:
        tokens = count * self.block_size
        self.claims.keep_within_limit(client, tokens)
        taken = super().take(count, client)
        for block in taken:
            block.client = client
        self.residency.add_private(client, tokens)
        self._report_gone()
        return taken

    def _make_blank(self, count: int, client: str) -> None:
        """End claims, or drop leaves, in the policy's order until the blocks are blank."""
        target = self.blank + count
        wanted = {client: target * self.block_size}
        while self.blank < target and self.claims.end_next(wanted, client):
            pass

    def _report_gone(self) -> None:
        if self._gone:
            self._report(self._gone)
            self._gone.clear()

    def use(self, block: Block) -> None:
        if not block.users:
            node = cast(ClaimedBlockNode, block.node)
            del node.idle[block]
            self.residency.pin(node.holders, self.block_size)
        super().use(block)

    def give_back(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            super().give_back((block,))
            if block.node is None:
                self.residency.add_private(block.client, -self.block_size)
            elif not block.users:
                self._idle(block, cast(ClaimedBlockNode, block.node))

    def _idle(self, block: Block, node: ClaimedBlockNode) -> None:
        self._clock += 1
        node.idle[block] = self._clock, 0, 0
        self.residency.pin(node.holders, -self.block_size)
        self._list_anew(node)

    def _list_anew(self, node: ClaimedBlockNode) -> None:
        if len(node.blocks) > 1:
            self.claims.list_again(node)  # with a spare block it may rank lower
        self.claims.list_if_leaf(node)

    # Claims.

    def claim(self, node: BlockNode, request: Request) -> None:
        self.policy.on_start(request)
        self.claims.claim(cast(ClaimedBlockNode, node), request.client)

    def retain(self, node: BlockNode, request: Request) -> None:
        keep_s = self.policy.on_finish(request, self._log.now_ps / PS_PER_S)
        self.claims.retain(cast(ClaimedBlockNode, node), request.client, keep_s)

    def store(
        self, node: BlockNode, prompt: Prompt, place: Place, blocks: Iterable[Block]
    ) -> tuple[BlockNode, Place]:
        for block in blocks:
            node, place = super().store(node, prompt, place, (block,))
            self._stored(block, cast(ClaimedBlockNode, node))
        return node, place

    def _stored(self, block: Block, node: ClaimedBlockNode) -> None:
        """Count a block of the client as cached, first or beside others of the same tokens."""
        if len(node.blocks) == 1:
            self._created += 1
            node.number = self._created
            self.claims.claim(node, block.client)
            return
        node.blocks.remove(block)
        self.claims.claim(node, block.client)
        node.blocks.append(block)
        self.residency.add_copy(node.holders, block.client, self.block_size)
        self._list_anew(node)

    # A ``ClaimedMemory``.

    def tokens_of(self, node: ClaimedBlockNode) -> tuple[int, int]:
        """Return the node's tokens that running requests use, and its other tokens."""
        idle = len(node.idle)
        return (len(node.blocks) - idle) * self.block_size, idle * self.block_size

    def is_pinned(self, node: ClaimedBlockNode) -> bool:
        """Return whether running requests use all blocks of the node."""
        return not node.idle

    def spare_tokens(self, node: ClaimedBlockNode) -> int:
        """Return the size of an unused block beside which another holds the same tokens, else 0."""
        return self.block_size if node.idle and len(node.blocks) > 1 else 0

    def access_of(self, node: ClaimedBlockNode) -> Access:
        """Return when the block was last used that goes first."""
        return node.last_access

    def is_awaited(self, node: ClaimedBlockNode) -> bool:
        """Return whether the match of a waiting request ends at the node."""
        return bool(node.waiters)

    def end_use(self, node: ClaimedBlockNode) -> None:
        """Do nothing: what is above a block was given back after it."""

    def drop(self, node: ClaimedBlockNode) -> None:
        """Make the node's least recently used block blank."""
        block = next(iter(node.idle))
        del node.idle[block], self.unused[block]
        self._gone.append(self._evict(block))
        self.blank += 1
        parent = node.parent
        if not node.blocks and parent is not None and parent.parent is not None:
            self.claims.list_if_leaf(parent)

    # Waiting requests: a node that loses one may rank lower.

    def attach(self, waiter: Waiter) -> None:
        before = waiter.node
        super().attach(waiter)
        if before is not None and before is not waiter.node:
            self.claims.list_again(cast(ClaimedBlockNode, before))

    def detach(self, waiter: Waiter) -> None:
        before = cast(ClaimedBlockNode, waiter.node)
        super().detach(waiter)
        self.claims.list_again(before)

    def abandon(self) -> None:
        super().abandon()
        self.claims.abandon()
