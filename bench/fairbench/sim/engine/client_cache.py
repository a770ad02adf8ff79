"""A KV cache that knows the clients of each token, and evicts by a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self, cast

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.schedulers.eviction.policy import Access, EvictionPolicy
from fairbench.schedulers.prefix_tree import Edge
from fairbench.sim.engine.cache_claims import Claims
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.residency import ResidencyLog
from fairbench.sim.kv_node import KVNode, Waiter


class ClaimedNode(KVNode):
    """A cached stretch with the clients that claim it, a ``Claimed``."""

    __slots__ = ("claimed_below", "holders", "keep_s", "listed_for", "uses")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()
        self.uses = 0
        self.keep_s = 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientCache(KVCache):
    """KV memory of ``capacity`` tokens, from which ``policy`` evicts.

    Cached tokens of the client ``others``, which the policy does not know, are evicted before all
    others.
    """

    knows_clients = True

    def __init__(
        self,
        capacity: int,
        on_evict: Callable[[Prompt, int], None] | None,
        policy: EvictionPolicy,
        log: ResidencyLog,
        others: str | None = None,
    ) -> None:
        super().__init__(capacity, on_evict, ClaimedNode)
        self.policy = policy
        self.claims: Claims[ClaimedNode] = Claims(policy, log, self, others)
        self.residency = self.claims.residency
        self._log = log

    # Clients' memory.

    def allocate_for(self, client: str, tokens: int) -> None:
        wanted = {client: tokens}
        self.claims.keep_within_limit(client, tokens)
        if tokens > self.free:
            self.evict(tokens - self.free, wanted)
        self.allocate(tokens)
        self.residency.add_private(client, tokens)

    def release_of(self, client: str, tokens: int) -> None:
        self.release(tokens)
        if tokens:
            self.residency.add_private(client, -tokens)

    def grow(self, steps: int, requests: Mapping[str, int], size: int) -> None:
        self.allocate(steps * size)
        for client, count in requests.items():
            self.claims.keep_within_limit(client, steps * count)
            self.residency.add_private(client, steps * count)

    def evict(self, tokens: int, requests: Mapping[str, int] | None = None) -> None:
        """End claims, or drop leaves, in the policy's order until ``tokens`` are freed."""
        target = self.free + tokens
        wanted = dict(requests or {})
        blamed = dict(wanted)  # each client's remaining part of the eviction
        while self.free < target:
            by = max(blamed, key=blamed.__getitem__, default=None)
            ended = self.claims.end_next(wanted, by)
            if not ended:
                return
            if by is not None:
                blamed[by] -= ended

    # Claims.

    def claim(self, node: KVNode, request: Request) -> None:
        self.policy.on_start(request)
        self.claims.claim(cast(ClaimedNode, node), request.client)

    def retain(self, node: KVNode, request: Request) -> None:
        keep_s = self.policy.on_finish(request, self._log.now_ps / PS_PER_S)
        self.claims.retain(cast(ClaimedNode, node), request.client, keep_s)

    # The interface ``ClaimedMemory``: a node is pinned or unpinned as a whole, and its tokens exist
    # once.

    def tokens_of(self, node: ClaimedNode) -> tuple[int, int]:
        return (node.length, 0) if node.locks else (0, node.length)

    def is_pinned(self, node: ClaimedNode) -> bool:
        return node.locks > 0

    def spare_tokens(self, node: ClaimedNode) -> int:
        return 0

    def access_of(self, node: ClaimedNode) -> Access:
        return self._access_of(node)

    def is_awaited(self, node: ClaimedNode) -> bool:
        return bool(node.waiters)

    def end_use(self, node: ClaimedNode) -> None:
        if (parent := node.parent) is not None:
            parent.last_access = max(parent.last_access, node.last_access)

    def cut(self, node: ClaimedNode, tokens: int) -> None:
        """Do nothing: SGLang drops leaves as a whole."""

    def drop(self, node: ClaimedNode) -> None:
        self._drop(node)

    # The tree.

    def _list_if_leaf(self, node: KVNode) -> None:
        if not node.locks and node is not self.root:
            self.claims.list_if_leaf(cast(ClaimedNode, node))

    def abandon(self) -> None:
        super().abandon()
        self.claims.abandon()

    def detach(self, waiter: Waiter) -> None:
        """Forget a waiting request; its node may then rank lower, and is listed again."""
        node = cast(ClaimedNode, waiter.node)
        super().detach(waiter)
        self.claims.list_again(node)

    def pin(self, node: KVNode, tokens: int) -> None:
        self.residency.pin(cast(ClaimedNode, node).holders, tokens)

    def on_split(self, upper: KVNode, lower: KVNode) -> None:
        super().on_split(upper, lower)
        above, below = cast(ClaimedNode, upper), cast(ClaimedNode, lower)
        above.holders = dict(below.holders)
        above.claimed_below = dict.fromkeys(below.holders, 1)
