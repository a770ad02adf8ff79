"""Clients' claims on the nodes of a cache, and the order in which an eviction policy ends them.

Each client *claims* the paths that its requests have used. A client's claims form a separate tree,
because a claim on a node is also a claim on its ancestors. A ``ClientEviction`` ends claims one by
one, and a node without claims leaves the cache; any other policy drops leaves with all claims on
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from heapq import heappop, heappush, heapreplace
from typing import Generic, Protocol, Self, TypeVar

from fairbench.schedulers.eviction.policy import (
    Access,
    Claimant,
    ClientEviction,
    EvictionPolicy,
    Leaf,
    Rank,
)
from fairbench.sim.engine.residency import Residency, ResidencyLog

EVERYONE = ""  # the only queue of a policy that does not distinguish clients


class Claimed(Protocol):
    """A cached stretch of tokens with the clients that claim it.

    ``claimed_below`` counts for each client the children that it claims, and ``listed_for`` names
    the queues that have an entry. ``uses`` and ``keep_s`` belong to the requests that ended here,
    or in nodes below that were dropped since. ``number`` breaks ties.
    """

    holders: dict[str, None]
    claimed_below: dict[str, int]
    listed_for: set[str]
    uses: int
    keep_s: float
    number: int

    @property
    def last_access(self) -> Access: ...

    @property
    def parent(self) -> Self | None: ...

    @property
    def children(self) -> Sized: ...


N = TypeVar("N", bound=Claimed)
Kept = TypeVar("Kept", bound=Claimed, contravariant=True)


class ClaimedMemory(Protocol[Kept]):
    """A cache whose nodes are claimed."""

    def tokens_of(self, node: Kept) -> tuple[int, int]:
        """Return the node's tokens that running requests use, and its other tokens."""

    def is_pinned(self, node: Kept) -> bool:
        """Return whether none of the node's tokens may be evicted."""

    def spare_tokens(self, node: Kept) -> int:
        """Return the size of a further copy of the node's tokens that may be evicted, else 0."""

    def access_of(self, node: Kept) -> Access:
        """Return the last use of an unpinned node, at least its ``last_access``."""

    def is_awaited(self, node: Kept) -> bool:
        """Return whether the match of a waiting request ends at the node."""

    def end_use(self, node: Kept) -> None:
        """Pass a node's last use on to its parent, because a claim on the node has ended."""

    def cut(self, node: Kept, tokens: int) -> None:
        """Cut a node down to the part that is evicted first, about ``tokens`` tokens."""

    def drop(self, node: Kept) -> None:
        """Free the spare copy of a node, or the node, which is then a leaf without claims."""


class Claims(Generic[N]):
    """The claims on the nodes of ``memory``, which ``policy`` ends.

    Cached tokens of the client ``others``, if there is one, are evicted before all others.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        log: ResidencyLog,
        memory: ClaimedMemory[N],
        others: str | None = None,
    ) -> None:
        self.policy = policy
        self.by_client = policy if isinstance(policy, ClientEviction) else None
        clients = [*policy.setup.clients, *([] if others is None else [others])]
        self.residency = Residency(clients, log)
        self.queues: dict[str, list[tuple[Rank, int, N]]] = {EVERYONE: []}
        self.queues |= {client: [] for client in clients}
        self._memory = memory
        self._others = others

    # Claims begin.

    def claim(self, node: N, client: str) -> None:
        """Claim the path to ``node``; unclaimed tokens were private and have just been stored."""
        first, residency = node, self.residency
        while (parent := node.parent) is not None and client not in node.holders:
            pinned, unpinned = self._memory.tokens_of(node)
            if not node.holders:
                residency.store(client, pinned + unpinned)
                if unpinned:
                    residency.pin({client: None}, -unpinned)
            else:
                if pinned:
                    residency.share(node.holders, client, pinned, pinned=True)
                if unpinned:
                    residency.share(node.holders, client, unpinned, pinned=False)
            node.holders[client] = None
            parent.claimed_below[client] = parent.claimed_below.get(client, 0) + 1
            if self._memory.spare_tokens(node):
                self.list_if_leaf(node)
            node = parent
        self.list_if_leaf(first)

    def retain(self, node: N, client: str, keep_s: float) -> None:
        """Claim the path of a finished request, to be kept until ``keep_s`` if there is room."""
        self.claim(node, client)
        node.uses += 1
        node.keep_s = max(node.keep_s, keep_s)

    # Claims end.

    def end_next(self, wanted: Mapping[str, int], by: str | None, short: int = 0) -> int:
        """End a claim, or drop a leaf, in the policy's order; return its tokens, 0 if impossible.

        Args:
            wanted: Tokens that the requests of each client wait for.
            by: Client for whose requests it is done.
            short: Tokens that are still to be freed.
        """
        queue = self._next_queue(wanted)
        leaf = None if queue is None else self._first(queue)
        if queue is None or leaf is None:
            return 0
        # Under a policy without clients the rest of a leaf is next; under a policy with clients, an
        # ended claim may make another client the next victim.
        return self._end(leaf, queue, by, short if self.by_client is None else 0)

    def keep_within_limit(self, client: str, tokens: int) -> None:
        """End claims of the client above the policy's limit; ``tokens`` more will be added."""
        limit = None if client == self._others else self.policy.limit(client)
        if limit is None:
            return
        while self.residency.held(client) + tokens > limit and (leaf := self._first(client)):
            self._end(leaf, client, client)

    def _end(self, leaf: N, queue: str, by: str | None, short: int = 0) -> int:
        """End one claim on the leaf, or all, or drop a spare copy; return the tokens of each."""
        memory = self._memory
        memory.cut(leaf, short)
        if spare := memory.spare_tokens(leaf):
            self.residency.drop(leaf.holders, spare, by)
            memory.drop(leaf)
            return spare
        tokens = sum(memory.tokens_of(leaf))
        if self.by_client is not None:
            self._end_claim(leaf, queue, tokens, by)
            return tokens
        self.residency.drop(leaf.holders, tokens, by)
        for client in leaf.holders:
            self._claimed_less_below(leaf.parent, client)
        leaf.holders.clear()
        self._drop(leaf)
        return tokens

    def _end_claim(self, node: N, client: str, tokens: int, by: str | None) -> None:
        self.residency.give_up(node.holders, client, tokens, by)
        self._memory.end_use(node)
        del node.holders[client]
        parent = node.parent
        self._claimed_less_below(parent, client)
        if not node.holders:
            self._drop(node)
        elif parent is not None:
            self.list_if_leaf(parent)

    def _claimed_less_below(self, parent: N | None, client: str) -> None:
        assert parent is not None
        parent.claimed_below[client] -= 1
        if not parent.claimed_below[client]:
            del parent.claimed_below[client]

    def _drop(self, leaf: N) -> None:
        parent = leaf.parent
        assert parent is not None
        parent.uses += leaf.uses
        parent.keep_s = max(parent.keep_s, leaf.keep_s)
        self._memory.drop(leaf)

    def _next_queue(self, wanted: Mapping[str, int]) -> str | None:
        if self.by_client is None:
            return EVERYONE
        residency = self.residency
        if self._others is not None and residency.unpinned(self._others) > 0:
            return self._others
        claimants = [
            Claimant(client, residency.held(client), unpinned, wanted.get(client, 0))
            for client in residency.clients
            if (unpinned := residency.unpinned(client)) > 0
        ]
        return self.by_client.choose(claimants) if claimants else None

    # The queues.

    def _first(self, queue: str) -> N | None:
        """Return the open leaf of lowest rank, and correct entries that were listed too early."""
        entries = self.queues[queue]
        while entries:
            listed, number, node = entries[0]
            if not self.is_open_leaf(node, queue):
                heappop(entries)
                node.listed_for.discard(queue)  # listed again when it becomes a leaf
            elif listed < (rank := self._rank(node)):
                heapreplace(entries, (rank, number, node))
            else:
                return node
        return None

    def _rank(self, node: N) -> Rank:
        return self._rank_at(node, self._memory.access_of(node), self._memory.is_awaited(node))

    def _rank_at(self, node: N, access: Access, awaited: bool) -> Rank:
        if self._memory.spare_tokens(node):
            return self.policy.rank(Leaf(access, 0, 0.0, awaited=False))
        return self.policy.rank(Leaf(access, node.uses, node.keep_s, awaited))

    def is_open_leaf(self, node: N, queue: str) -> bool:
        """Return whether the queue may take a claimed node: unpinned, a leaf or a spare copy."""
        if not node.holders or self._memory.is_pinned(node):
            return False
        if queue is EVERYONE:
            return not node.children or self._memory.spare_tokens(node) > 0
        if queue not in node.holders:
            return False
        return queue not in node.claimed_below or self._memory.spare_tokens(node) > 0

    def list_if_leaf(self, node: N) -> None:
        """List a node in each queue that may take it and has no entry for it."""
        for queue in self._queues_of(node):
            if queue not in node.listed_for and self.is_open_leaf(node, queue):
                node.listed_for.add(queue)
                self._enter(queue, node)

    def list_again(self, node: N) -> None:
        """List a node again that may rank lower than its entries say."""
        for queue in node.listed_for:
            self._enter(queue, node)

    def _queues_of(self, node: N) -> Iterable[str]:
        return node.holders if self.by_client is not None else (EVERYONE,)

    def _enter(self, queue: str, node: N) -> None:
        least = self._rank_at(node, node.last_access, awaited=False)
        heappush(self.queues[queue], (least, node.number, node))

    def abandon(self) -> None:
        for entries in self.queues.values():
            entries.clear()
