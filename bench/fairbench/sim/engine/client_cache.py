"""A KV cache that knows the clients of each token, and evicts by a policy.

Each client *claims* the paths that its requests have used. A client's claims form a tree of their
own, since a claim on a node is also one on what is above it. A ``ClientEviction`` ends
claims one by one, and a token leaves the cache when nobody claims it; any other policy drops leaves
as they are, with all claims on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush, heapreplace
from typing import Self, cast

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.schedulers.eviction.policy import (
    Claimant,
    ClientEviction,
    EvictionPolicy,
    Leaf,
    Rank,
)
from fairbench.schedulers.prefix_tree import Edge
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.residency import Residency
from fairbench.sim.kv_node import KVNode, Waiter
from fairbench.sim.records.memory_log import WorkerMemoryLog

EVERYONE = ""  # the one queue of a policy that does not tell clients apart


class ClaimedNode(KVNode):
    """A cached stretch with the clients that claim it.

    ``claimed_below`` counts for each client the children that it claims. ``uses`` and ``keep_s``
    are of the requests that ended here, or in what has since been dropped below.
    """

    __slots__ = ("claimed_below", "holders", "keep_s", "listed_for", "uses")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()  # the queues that have an entry
        self.uses = 0
        self.keep_s = 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientCache(KVCache):
    """KV memory of ``capacity`` tokens, from which ``policy`` evicts."""

    knows_clients = True

    def __init__(
        self,
        capacity: int,
        on_evict: Callable[[Prompt, int], None] | None,
        policy: EvictionPolicy,
        log: WorkerMemoryLog,
    ) -> None:
        super().__init__(capacity, on_evict, ClaimedNode)
        self.policy = policy
        self.by_client = policy if isinstance(policy, ClientEviction) else None
        self.residency = Residency(policy.setup.clients, log)
        self._log = log
        self._queues: dict[str, list[tuple[Rank, int, ClaimedNode]]] = {EVERYONE: []}
        self._queues |= {client: [] for client in policy.setup.clients}

    # Memory of clients.

    def allocate_for(self, client: str, tokens: int) -> None:
        wanted = {client: tokens}
        self._keep_within_limit(client, tokens)
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
            self._keep_within_limit(client, steps * count)
            self.residency.add_private(client, steps * count)

    # Claims.

    def claim(self, node: KVNode, request: Request) -> None:
        self.policy.on_start(request)
        self._claim(cast(ClaimedNode, node), request.client)

    def retain(self, node: KVNode, request: Request) -> None:
        end = cast(ClaimedNode, node)
        self._claim(end, request.client)
        end.uses += 1
        keep_s = self.policy.on_finish(request, self._log.now_ps / PS_PER_S)
        end.keep_s = max(end.keep_s, keep_s)

    def _claim(self, node: ClaimedNode, client: str) -> None:
        """Claim the path to ``node``; unclaimed tokens were private and have just been stored.

        What the client claims already it claims up to the root.
        """
        first = node
        while (parent := node.parent) is not None and client not in node.holders:
            pinned = node.locks > 0
            if not node.holders:
                self.residency.store(client, node.length)
                if not pinned:
                    self.residency.pin({client: None}, -node.length)
            else:
                self.residency.share(node.holders, client, node.length, pinned=pinned)
            node.holders[client] = None
            parent.claimed_below[client] = parent.claimed_below.get(client, 0) + 1
            node = parent
        self._list_if_leaf(first)

    def _end_claim(self, node: ClaimedNode, client: str, by: str | None) -> None:
        self.residency.give_up(node.holders, client, node.length, by)
        parent = cast(ClaimedNode, node.parent)
        parent.last_access = max(parent.last_access, node.last_access)
        del node.holders[client]
        self._claimed_less_below(parent, client)
        if node.holders:
            self._list_if_leaf(parent)
        else:
            self._drop(node)

    def _claimed_less_below(self, parent: ClaimedNode, client: str) -> None:
        parent.claimed_below[client] -= 1
        if not parent.claimed_below[client]:
            del parent.claimed_below[client]

    # Eviction.

    def evict(self, tokens: int, requests: Mapping[str, int] | None = None) -> None:
        """End claims, or drop leaves, in the policy's order until ``tokens`` are freed."""
        target = self.free + tokens
        wanted = dict(requests or {})
        blamed = dict(wanted)  # what each client's part of the eviction still is
        while self.free < target and (queue := self._next_queue(wanted)) is not None:
            leaf = self._first(queue)
            if leaf is None:
                return
            by = max(blamed, key=blamed.__getitem__, default=None)
            if by is not None:
                blamed[by] -= leaf.length
            if self.by_client is not None:
                self._end_claim(leaf, queue, by)
                continue
            self.residency.drop(leaf.holders, leaf.length, by)
            for client in leaf.holders:
                self._claimed_less_below(cast(ClaimedNode, leaf.parent), client)
            leaf.holders.clear()
            self._drop(leaf)

    def _next_queue(self, wanted: Mapping[str, int]) -> str | None:
        if self.by_client is None:
            return EVERYONE
        residency = self.residency
        claimants = [
            Claimant(client, residency.held(client), unpinned, wanted.get(client, 0))
            for client in residency.clients
            if (unpinned := residency.unpinned(client)) > 0
        ]
        return self.by_client.choose(claimants) if claimants else None

    def _keep_within_limit(self, client: str, tokens: int) -> None:
        """End claims of the client above the policy's limit; ``tokens`` more will be added."""
        limit = self.policy.limit(client)
        if limit is None:
            return
        while self.residency.held(client) + tokens > limit and (leaf := self._first(client)):
            self._end_claim(leaf, client, client)

    def _first(self, queue: str) -> ClaimedNode | None:
        """Return the open leaf of lowest rank, and correct entries that were listed too early."""
        entries = self._queues[queue]
        while entries:
            listed, number, node = entries[0]
            if not self._is_open_leaf(node, queue):
                heappop(entries)
                node.listed_for.discard(queue)  # listed again when it is one
            elif listed < (rank := self._rank(node)):
                heapreplace(entries, (rank, number, node))
            else:
                return node
        return None

    def _rank(self, node: ClaimedNode) -> Rank:
        access = self._access_of(node)
        return self.policy.rank(Leaf(access, node.uses, node.keep_s, bool(node.waiters)))

    def _is_open_leaf(self, node: ClaimedNode, queue: str) -> bool:
        """Return whether the queue may take the node: claimed, unlocked, no claims below."""
        if node.locks or not node.holders:
            return False
        if queue is EVERYONE:
            return not node.children
        return queue in node.holders and queue not in node.claimed_below

    def _list_if_leaf(self, node: KVNode) -> None:
        if node.locks or node is self.root:
            return
        mine = cast(ClaimedNode, node)
        for queue in self._queues_of(mine):
            if queue not in mine.listed_for and self._is_open_leaf(mine, queue):
                mine.listed_for.add(queue)
                self._enter(queue, mine)

    def _queues_of(self, node: ClaimedNode) -> Iterable[str]:
        return node.holders if self.by_client is not None else (EVERYONE,)

    def _enter(self, queue: str, node: ClaimedNode) -> None:
        least = self.policy.rank(Leaf(node.last_access, node.uses, node.keep_s, awaited=False))
        heappush(self._queues[queue], (least, node.number, node))

    # The tree.

    def _drop(self, leaf: KVNode) -> None:
        mine, parent = cast(ClaimedNode, leaf), cast(ClaimedNode, leaf.parent)
        parent.uses += mine.uses
        parent.keep_s = max(parent.keep_s, mine.keep_s)
        super()._drop(leaf)

    def abandon(self) -> None:
        super().abandon()
        for entries in self._queues.values():
            entries.clear()

    def detach(self, waiter: Waiter) -> None:
        """Forget a waiting request; its node may then rank lower, and is listed again."""
        node = cast(ClaimedNode, waiter.node)
        super().detach(waiter)
        for queue in node.listed_for:
            self._enter(queue, node)

    def lock(self, node: KVNode) -> None:
        while (parent := node.parent) is not None:
            node.locks += 1
            if node.locks > 1:
                return
            self.evictable -= node.length
            self.locked += node.length
            self.residency.pin(cast(ClaimedNode, node).holders, node.length)
            node = parent

    def unlock(self, node: KVNode) -> None:
        while (parent := node.parent) is not None:
            node.locks -= 1
            if node.locks:
                return
            self.evictable += node.length
            self.locked -= node.length
            self.residency.pin(cast(ClaimedNode, node).holders, -node.length)
            self._list_if_leaf(node)
            node = parent

    def on_split(self, upper: KVNode, lower: KVNode) -> None:
        super().on_split(upper, lower)
        above, below = cast(ClaimedNode, upper), cast(ClaimedNode, lower)
        above.holders = dict(below.holders)
        above.claimed_below = dict.fromkeys(below.holders, 1)
