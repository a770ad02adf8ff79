"""vLLM's KV memory in which an eviction policy chooses the block to overwrite.

A policy chooses among the nodes of the block tree that have an unused copy and no continuation; the
last block of the run is evicted. vLLM keeps several copies of the same tokens, each with its own
last use. A look-up finds one of the copies, so the others rank as unused. A node with further
copies may lose one although its continuation is cached.
"""

from __future__ import annotations

from typing import Self, cast

from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.schedulers.eviction.policy import Access, EvictionPolicy
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.cache_claims import Claims
from fairbench.sim.engine.residency import ResidencyLog
from fairbench.sim.engine.vllm.block_cache import BlockCache, held_by
from fairbench.sim.engine.vllm.block_keys import Key
from fairbench.sim.engine.vllm.block_tree import BlockNode, RunCopy, Waiter
from fairbench.sim.sequence import Sequence


class ClaimedRun(BlockNode):
    """A run of blocks with the clients that claim it, a ``Claimed``."""

    __slots__ = ("claimed_below", "holders", "keep_s", "listed_for", "number", "uses")

    def __init__(
        self, parent: Self | None, key: Key, prompt: Prompt, start: Place, depth: int
    ) -> None:
        super().__init__(parent, key, prompt, start, depth)
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()
        self.uses = 0
        self.keep_s = 0.0
        self.number = 0

    def oldest(self) -> RunCopy | None:
        """Return the unused copy that is evicted first, None if all are used."""
        unused = (copy for copy in self.copies if not copy.users)
        return min(unused, key=_stamp, default=None)

    @property
    def last_access(self) -> Access:
        """The time at which that copy was given back; of a path, the last block goes first."""
        copy = self.oldest()
        return (0 if copy is None else copy.stamp), -self.depth, 0


class ClientBlockCache(BlockCache):
    """A cache of ``blocks`` blocks of ``block_size`` tokens, from which ``policy`` evicts.

    Owners of blocks are sequences.
    """

    knows_clients = True
    tells_evictions = True  # reported in the memory log

    def __init__(
        self,
        blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        log: ResidencyLog,
        *,
        prefix_caching: bool = True,
    ) -> None:
        super().__init__(blocks, block_size, prefix_caching=prefix_caching, node_type=ClaimedRun)
        self.policy = policy
        self.claims: Claims[ClaimedRun] = Claims(policy, log, self)
        self.residency = self.claims.residency
        self._log = log
        self._given_back = 0  # requests that gave their blocks back
        self._created = 0
        self._row: tuple[Prompt, int] = ((), 0)  # the end of blocks that were evicted in succession
        self._row_tokens = 0
        self._above: BlockNode | None = (
            None  # parent of the last evicted node, at which the succession continues
        )

    # Clients' memory.

    def take(self, count: int, owner: object = None) -> None:
        client, tokens = _client_of(owner), count * self.block_size
        self.claims.keep_within_limit(client, tokens)
        wanted, size = {client: tokens}, self.block_size
        while (short := count - self.blank) > 0:
            if not self.claims.end_next(wanted, client, short * size):
                break
        self._report(self._row, self._row_tokens)
        self._row_tokens, self._above = 0, None
        super().take(count, owner)
        self.residency.add_private(client, tokens)

    def use(self, copy: RunCopy, owner: object) -> None:
        if not copy.users:
            self._pin(copy, 1)
        super().use(copy, owner)

    def give_back(self, owner: object, node: BlockNode, blank: int) -> None:
        held = list(held_by(owner, node))
        super().give_back(owner, node, blank)
        self.residency.add_private(_client_of(owner), -blank * self.block_size)
        self._given_back += 1
        for copy in held:
            if not copy.users:
                copy.stamp = self._given_back
                self._pin(copy, -1)
                self._list_anew(cast(ClaimedRun, copy.node))

    def _pin(self, copy: RunCopy, sign: int) -> None:
        node = cast(ClaimedRun, copy.node)
        self.residency.pin(node.holders, sign * node.blocks * self.block_size)

    def _list_anew(self, node: ClaimedRun) -> None:
        if len(node.copies) > 1:
            self.claims.list_again(node)  # a node with a spare copy may rank lower
        self.claims.list_if_leaf(node)

    # Claims.

    def claim(self, node: BlockNode, request: Request) -> None:
        self.policy.on_start(request)
        self.claims.claim(cast(ClaimedRun, node), request.client)

    def retain(self, node: BlockNode, request: Request) -> None:
        keep_s = self.policy.on_finish(request, self._log.now_ps / PS_PER_S)
        self.claims.retain(cast(ClaimedRun, node), request.client, keep_s)

    # The tree.

    def add_copy(self, owner: object, node: BlockNode) -> None:
        mine, client = cast(ClaimedRun, node), _client_of(owner)
        self.claims.claim(mine, client)
        super().add_copy(owner, node)
        self.residency.add_copy(mine.holders, client, node.blocks * self.block_size)
        self._list_anew(mine)

    def may_grow(self, node: BlockNode, owner: object) -> bool:
        """Return whether the node may grow: its client must also be the owner's alone."""
        mine = cast(ClaimedRun, node)
        only = super().may_grow(node, owner) and not mine.uses
        return only and [*mine.holders] == [_client_of(owner)]

    def _append(
        self, owner: object, node: BlockNode, key: Key, prompt: Prompt, place: Place, blocks: int
    ) -> tuple[BlockNode, Place]:
        end, place = super()._append(owner, node, key, prompt, place, blocks)
        mine, client = cast(ClaimedRun, end), _client_of(owner)
        if end is node:
            self.residency.store(client, blocks * self.block_size)
        else:
            self._number(mine)
            self.claims.claim(mine, client)
        return end, place

    def split(self, node: BlockNode, blocks: int) -> BlockNode:
        """Cut a node after its first ``blocks`` blocks, with all claims; return the upper node."""
        upper = super().split(node, blocks)
        above, below = cast(ClaimedRun, upper), cast(ClaimedRun, node)
        self._number(above)
        above.holders = dict(below.holders)
        above.claimed_below = dict.fromkeys(below.holders, 1)
        if len(upper.copies) > 1:
            self.claims.list_if_leaf(above)
        return upper

    def _number(self, node: ClaimedRun) -> None:
        self._created += 1
        node.number = self._created

    def _unfile(self, waiter: Waiter) -> None:
        """Detach a waiting request; its node may then rank lower, and is listed again."""
        node = cast(ClaimedRun, waiter.node)
        super()._unfile(waiter)
        self.claims.list_again(node)

    def abandon(self) -> None:
        super().abandon()
        self.claims.abandon()

    # A ``ClaimedMemory``.

    def tokens_of(self, node: ClaimedRun) -> tuple[int, int]:
        used, tokens = sum(1 for copy in node.copies if copy.users), node.blocks * self.block_size
        return used * tokens, (len(node.copies) - used) * tokens

    def is_pinned(self, node: ClaimedRun) -> bool:
        return all(copy.users for copy in node.copies)

    def spare_tokens(self, node: ClaimedRun) -> int:
        spare = len(node.copies) > 1 and not self.is_pinned(node)
        return node.blocks * self.block_size if spare else 0

    def access_of(self, node: ClaimedRun) -> Access:
        return node.last_access

    def is_awaited(self, node: ClaimedRun) -> bool:
        return bool(node.waiters)

    def end_use(self, node: ClaimedRun) -> None:
        """Do nothing: the blocks above a block were given back with it, or later."""

    def cut(self, node: ClaimedRun, tokens: int) -> None:
        """Cut a node down to its last blocks, enough for ``tokens`` tokens, at least one block."""
        blocks = max(1, -(-tokens // self.block_size))
        if node.blocks > blocks:
            self.split(node, node.blocks - blocks)

    def drop(self, node: ClaimedRun) -> None:
        """Make the blocks of a node's least recently used copy blank."""
        copy, parent = node.oldest(), node.parent
        assert copy is not None
        assert parent is not None
        last = len(node.copies) == 1
        if last:
            if node is not self._above:
                self._report(self._row, self._row_tokens)
                self._row, self._row_tokens = (node.prompt, node.depth), 0
            self._above = parent
            self._row_tokens += node.blocks * self.block_size
        self.blank += node.blocks
        self._evict(copy, node.blocks)
        if last and parent is not self.root:
            self.claims.list_if_leaf(parent)


def _client_of(owner: object) -> str:
    return cast(Sequence, owner).request.client


def _stamp(copy: RunCopy) -> int:
    return copy.stamp
