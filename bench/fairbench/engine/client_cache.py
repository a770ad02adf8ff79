"""KV caches that track which clients use each token, and evict tokens by a policy.

A client *claims* each path of the prefix tree that its requests have used. A client that claims a
node also claims the node's ancestors, so a client's claims form a tree. A ``ClientEviction`` policy
ends clients' claims one by one, and a node is evicted when no client claims the node. A policy that
does not distinguish clients evicts a leaf even if several clients have used it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.engine.kv_cache import KVCache, KVNode, KVWaiter
from fairbench.engine.sequence import Sequence
from fairbench.schedulers.eviction.policies import (
    Access,
    Claimant,
    ClientEviction,
    EvictionPolicy,
    Leaf,
    Rank,
)
from fairbench.schedulers.memory_share import MemoryShare, PromptTokens
from fairbench.schedulers.prefix_tree import Edge

if TYPE_CHECKING:
    from fairbench.engine.contract import ManagedMemory


class ResidencyLog(Protocol):
    """A log of changes in the number of tokens that each client of a replica has in memory."""

    @property
    def now_ps(self) -> int:
        """The simulated time in picoseconds."""

    def change(self, client: str, holders: int, change: int, by: str | None = None) -> None:
        """Record that the number of a client's tokens in memory changed by ``change``.

        ``holders`` is the number of clients that share the tokens. If tokens were evicted, ``by``
        is the client that needed the memory.
        """


class Residency:
    """The number of tokens that each client has in memory.

    ``log`` records every change in the number of a client's tokens in memory.

    A token that k clients use counts as 1/k token for each client. To avoid rounding errors, there
    is an integer counter of tokens for each value of k.
    """

    def __init__(self, clients: Iterable[str], log: ResidencyLog) -> None:
        self._log = log
        self._held: dict[str, Counter[int]] = {client: Counter() for client in clients}
        self._unpinned: dict[str, Counter[int]] = {client: Counter() for client in self._held}
        self._private = Counter[str]()

    @property
    def clients(self) -> Iterable[str]:
        return self._held

    def held(self, client: str) -> float:
        """Return the number of a client's tokens in memory, inside or outside the prefix tree."""
        return _sum(self._held[client]) + self._private[client]

    def unpinned(self, client: str) -> float:
        """Return the number of a client's cached tokens that no running request uses."""
        return _sum(self._unpinned[client])

    def pinned(self, client: str) -> float:
        """Return the number of a client's tokens that running requests use."""
        return self.held(client) - self.unpinned(client)

    def add_private(self, client: str, tokens: int) -> None:
        """Add tokens that the client's running requests use outside the prefix tree."""
        self._private[client] += tokens
        self._log.change(client, 1, tokens)

    def store(self, client: str, tokens: int) -> None:
        """Move tokens that a running request uses into the prefix tree."""
        self._private[client] -= tokens
        self._held[client][1] += tokens

    def add_copy(self, holders: Iterable[str], client: str, tokens: int) -> None:
        """Count a request's private tokens as a further copy of tokens that ``holders`` claim."""
        self.add_private(client, -tokens)
        everyone = list(holders)
        for holder in everyone:
            self._add(holder, len(everyone), tokens, pinned=True)

    def share(self, holders: Iterable[str], client: str, tokens: int, *, pinned: bool) -> None:
        """Record that ``client`` has used cached tokens, like the clients in ``holders``.

        ``pinned`` says whether running requests use the tokens.
        """
        everyone = [*holders, client]
        self._move(everyone[:-1], len(everyone) - 1, len(everyone), tokens, pinned=pinned)
        self._add(client, len(everyone), tokens, pinned=pinned)

    def give_up(self, holders: Iterable[str], client: str, tokens: int, by: str | None) -> None:
        """End a client's claim on unused tokens, because client ``by`` needs the memory."""
        others = [one for one in holders if one != client]
        self._add(client, len(others) + 1, -tokens, by, pinned=False)
        self._move(others, len(others) + 1, len(others), tokens, pinned=False)

    def drop(self, holders: Mapping[str, None], tokens: int, by: str | None) -> None:
        """End all claims on evicted tokens; client ``by`` caused the eviction."""
        for client in holders:
            self._add(client, len(holders), -tokens, by, pinned=False)

    def pin(self, holders: Mapping[str, None], tokens: int) -> None:
        """Record that requests use ``tokens`` more tokens of ``holders`` (fewer if negative)."""
        for client in holders:
            self._unpinned[client][len(holders)] -= tokens

    def _move(self, clients: list[str], old: int, new: int, tokens: int, *, pinned: bool) -> None:
        for client in clients:
            self._add(client, old, -tokens, pinned=pinned)
            self._add(client, new, tokens, pinned=pinned)

    def _add(
        self, client: str, holders: int, tokens: int, by: str | None = None, *, pinned: bool
    ) -> None:
        self._held[client][holders] += tokens
        if not pinned:
            self._unpinned[client][holders] += tokens
        self._log.change(client, holders, tokens, by)


def _sum(by_holders: Counter[int]) -> float:
    return sum(tokens / holders for holders, tokens in by_holders.items())


@dataclass
class PinAudit:
    """Counts of allocations and lost tokens, to check the theorem on fair memory shares.

    - ``allocations`` counts the allocations for which a ``ClientEviction`` had to evict tokens.
    - ``beyond`` counts the allocations in which a client's tokens in use and requested tokens
      together exceed the client's share.
    - ``lost_tokens`` sums the tokens that clients at or below their share lost to other clients. If
      ``beyond`` is 0, ``lost_tokens`` must be 0 according to the theorem on fair memory shares.
    """

    allocations: int = 0
    beyond: int = 0
    lost_tokens: float = 0.0

    def add(self, other: PinAudit) -> None:
        self.allocations += other.allocations
        self.beyond += other.beyond
        self.lost_tokens += other.lost_tokens


# rounding error (in tokens) that is allowed in a client's memory, a sum of fractions of tokens
ROUNDING = 1e-6


# the name of the eviction queue that all clients share if the policy does not distinguish clients
EVERYONE = ""


class Claimed(Protocol):
    """A node of cached tokens, with the clients (``holders``) that claim the tokens.

    - ``claimed_below`` maps each client to the number of the node's children that the client
      claims.
    - ``listed_for`` names the eviction queues that have an entry for the node.
    - ``uses`` counts the finished requests whose tokens ended at the node or an evicted node below.
    - ``keep_s`` is the simulated time (s) until which the policy wants to keep the node's tokens.
    - ``number`` decides the order in which nodes of equal rank are evicted.
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
    """The interface of a cache whose nodes are claimed by clients."""

    def tokens_of(self, node: Kept) -> tuple[int, int]:
        """Return how many of a node's tokens running requests use, and how many are unused."""

    def is_pinned(self, node: Kept) -> bool:
        """Return True if none of the node's tokens may be evicted."""

    def spare_tokens(self, node: Kept) -> int:
        """Return the tokens of an unused second copy of the node, or 0 if there is none."""

    def access_of(self, node: Kept) -> Access:
        """Return the last use of an unpinned node, which may be later than ``last_access``."""

    def is_awaited(self, node: Kept) -> bool:
        """Return whether a waiting request's cached prefix ends at the node."""

    def end_use(self, node: Kept) -> None:
        """Update the last use of the node's parent after a client's claim on the node has ended."""

    def cut(self, node: Kept, tokens: int) -> None:
        """Split ``node`` so that it keeps only its last ``tokens`` tokens, in whole blocks."""

    def drop(self, node: Kept) -> None:
        """Free a node's unused second copy; if there is no second copy, free the unclaimed node."""


class Claims(Generic[N]):
    """A record of which clients have used (claim) each node of a cache.

    When memory is needed, ``policy`` chooses the claim on cached tokens that ends next. ``others``
    is the name under which all clients unknown to the policy are counted, or None. The cached
    tokens of the client ``others`` are evicted first.
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
        self._log = log
        self.queues: dict[str, list[tuple[Rank, int, N]]] = {EVERYONE: []}
        self.queues |= {client: [] for client in clients}
        self._memory = memory
        self._others = others
        self.audit = PinAudit()

    # Start of claims

    def start(self, node: N, request: Request) -> None:
        """Claim the path to ``node`` for a running request."""
        self.policy.on_start(request, self._log.now_ps / PS_PER_S)
        self.claim(node, request.client)

    def finish(self, node: N, request: Request) -> None:
        """Claim the path to ``node``, at which the tokens of a finished request end."""
        keep_s = self.policy.on_finish(request, self._log.now_ps / PS_PER_S)
        self.claim(node, request.client)
        node.uses += 1
        node.keep_s = max(node.keep_s, keep_s)

    def claim(self, node: N, client: str) -> None:
        """Add the client's claim to ``node`` and to all ancestors of ``node``."""
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

    # End of claims

    def end_next(self, wanted: Mapping[str, int], by: str | None, short: int = 0) -> int:
        """Free memory at the policy's next leaf: end one client's claim, or evict the leaf.

        Args:
            wanted: Tokens that each client's waiting requests need.
            by: The client whose requests need the memory.
            short: Number of tokens that must still be freed.

        Returns:
            The number of tokens that lost a claim or were evicted; 0 if nothing can be evicted,
            because running requests use all tokens.
        """
        queue = self._next_queue(wanted)
        leaf = None if queue is None else self._first(queue)
        if queue is None or leaf is None:
            return 0
        if self.by_client is None:
            return self._end(leaf, queue, by, short)
        # If the client ``queue`` is within its share, it should lose no tokens to the client
        # ``by``.
        protected = (
            by is not None
            and queue not in (by, self._others)
            and self.residency.held(queue) + wanted.get(queue, 0) <= self.by_client.entitled(queue)
        )
        holders = len(leaf.holders)
        # Each call frees as few tokens as possible, because the policy may choose another client at
        # the next call.
        tokens = self._end(leaf, queue, by)
        if protected:
            self.audit.lost_tokens += tokens / holders
        return tokens

    def check_pins(self, wanted: Mapping[str, int]) -> None:
        """Check, before an eviction, that each client's needed tokens fit into its memory share.

        The theorem on memory shares, proved in docs/appendix/theory.md, says that no client at or
        below its share loses a token to another client. The theorem assumes for every client i that
        the tokens P_i in use plus the requested tokens n_i (``wanted``) fit into the client's share
        S_i: P_i + n_i <= S_i.
        """
        if self.by_client is None:
            return
        residency, share = self.residency, self.by_client.entitled
        self.audit.allocations += 1
        self.audit.beyond += any(
            residency.pinned(one) + wanted.get(one, 0) > share(one) + ROUNDING
            for one in residency.clients
            if one != self._others
        )

    def keep_within_limit(self, client: str, tokens: int) -> None:
        """Release cached tokens of a client until ``tokens`` more tokens fit into its limit."""
        limit = None if client == self._others else self.policy.limit(client)
        if limit is None:
            return
        while self.residency.held(client) + tokens > limit and (leaf := self._first(client)):
            self._end(leaf, client, client)

    def _end(self, leaf: N, queue: str, by: str | None, short: int = 0) -> int:
        """Drop a leaf's spare copy, end a client's claim on the leaf, or evict the leaf.

        If the leaf has a spare copy (a second, unused copy of its tokens), only this copy is
        dropped. Return the number of tokens whose memory is freed.
        """
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

    # Eviction queues

    def _first(self, queue: str) -> N | None:
        """Return the evictable leaf with the lowest rank, after updates of outdated ranks."""
        entries, memory = self.queues[queue], self._memory
        while entries:
            listed, number, node = entries[0]
            if not self.is_open_leaf(node, queue):
                heappop(entries)
                # A node that leaves the eviction queue is added again when it becomes an evictable
                # leaf.
                node.listed_for.discard(queue)
                continue
            rank = self._rank_at(node, memory.access_of(node), memory.is_awaited(node))
            if not listed < rank:
                return node
            heapreplace(entries, (rank, number, node))
        return None

    def _rank_at(self, node: N, access: Access, awaited: bool) -> Rank:
        if self._memory.spare_tokens(node):
            return self.policy.rank(Leaf(access))
        return self.policy.rank(Leaf(access, node.uses, node.keep_s, awaited))

    def is_open_leaf(self, node: N, queue: str) -> bool:
        """Return whether the policy may evict a node of the eviction queue ``queue``.

        Tokens in use are not evicted. The second copy of a node may be evicted if the copy is
        unused. A node without a second copy may be evicted if the queue's clients claim none of its
        children.
        """
        if not node.holders or self._memory.is_pinned(node):
            return False
        if queue is EVERYONE:
            return not node.children or self._memory.spare_tokens(node) > 0
        if queue not in node.holders:
            return False
        return queue not in node.claimed_below or self._memory.spare_tokens(node) > 0

    def list_if_leaf(self, node: N) -> None:
        """Add a node to all eviction queues in which it is evictable and has no entry yet."""
        for queue in node.holders if self.by_client is not None else (EVERYONE,):
            if queue not in node.listed_for and self.is_open_leaf(node, queue):
                node.listed_for.add(queue)
                self._enter(queue, node)

    def list_again(self, node: N) -> None:
        """Add a new entry to eviction queues for a node whose rank may have fallen."""
        for queue in node.listed_for:
            self._enter(queue, node)

    def _enter(self, queue: str, node: N) -> None:
        least = self._rank_at(node, node.last_access, awaited=False)
        heappush(self.queues[queue], (least, node.number, node))

    def abandon(self) -> None:
        for entries in self.queues.values():
            entries.clear()


class ClaimedNode(KVNode):
    """A prefix-tree node of cached tokens with the clients that claim them (see ``Claimed``)."""

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
    """The KV memory of an SGLang replica, in which clients claim cached tokens.

    ``capacity`` is the size of the KV memory in tokens. ``Claims`` explains ``policy`` and
    ``others``.
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
        super().__init__(capacity, on_evict, ClaimedNode, policy)
        self.claims: Claims[ClaimedNode] = Claims(policy, log, self, others)
        self.residency = self.claims.residency

    # Memory by client

    def prefix_tokens(self, prompt: Prompt, limit: int) -> tuple[int, int]:
        """Return how many tokens of a prompt are cached, and how many are cached and in use."""
        node, _ = self.descend(self.root, prompt, (0, 0), limit, split=False)
        while node.parent is not None and not node.locks:
            node = node.parent
        return self.common_tokens(prompt, limit), node.depth

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
        """Evict cached tokens, in the policy's order, until ``tokens`` tokens are freed."""
        target = self.free + tokens
        wanted = dict(requests or {})
        # ``blamed`` maps each client to the tokens that must still be evicted for its requests.
        blamed = dict(wanted)
        if self.free < target:
            self.claims.check_pins(wanted)
        while self.free < target:
            by = max(blamed, key=blamed.__getitem__, default=None)
            ended = self.claims.end_next(wanted, by)
            if not ended:
                return
            if by is not None:
                blamed[by] -= ended

    # Claims on nodes

    def claim(self, node: KVNode, request: Request) -> None:
        self.claims.start(cast(ClaimedNode, node), request)

    def retain(self, node: KVNode, request: Request) -> None:
        self.claims.finish(cast(ClaimedNode, node), request)

    # SGLang pins whole nodes and stores their tokens in memory only once.

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
        """Leave the node whole, because SGLang always evicts whole leaves."""

    def drop(self, node: ClaimedNode) -> None:
        self._drop(node)

    # Prefix tree

    def _list_if_leaf(self, node: KVNode) -> None:
        if not node.locks and node is not self.root:
            self.claims.list_if_leaf(cast(ClaimedNode, node))

    def abandon(self) -> None:
        super().abandon()
        self.claims.abandon()

    def detach(self, waiter: KVWaiter) -> None:
        """Detach a waiting request from its node; this may lower the node's eviction rank."""
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


class ClientPool(Protocol):
    """A cache that counts clients' tokens, so that a ``MemoryShare`` can read them."""

    @property
    def free(self) -> int: ...

    @property
    def residency(self) -> Residency: ...

    def prefix_tokens(self, prompt: Prompt, limit: int) -> tuple[int, int]:
        """Return how many tokens of a prompt are cached, and how many are cached and in use."""


class WaitingSequences(Protocol):
    """A waiting queue that returns the ``Sequence`` object of a waiting request."""

    def sequence_of(self, request: Request) -> Sequence: ...


class QueueMemory:
    """The KV memory of a simulated worker's clients, in the form that ``MemoryShare`` expects."""

    def __init__(self, cache: ClientPool, waiting: WaitingSequences) -> None:
        self._cache, self._waiting = cache, waiting
        residency = cache.residency
        self.held, self.unpinned = residency.held, residency.unpinned
        self.clients = tuple(residency.clients)

    @property
    def free(self) -> int:
        return self._cache.free

    def demand(self, request: Request) -> PromptTokens:
        sequence = self._waiting.sequence_of(request)
        cached, used = self._cache.prefix_tokens(sequence.prompt, sequence.total - 1)
        return PromptTokens(sequence.total - cached, sequence.total - used)


def memory_share(
    memory: ManagedMemory, cache: ClientPool, waiting: WaitingSequences
) -> MemoryShare | None:
    """Return the ``MemoryShare`` that limits admissions, or None if memory is not shared."""
    policy = memory.policy
    if not memory.shares or not isinstance(policy, ClientEviction):
        return None
    return MemoryShare(policy.entitled, QueueMemory(cache, waiting))


def pin_audit(caches: Iterable[object]) -> PinAudit | None:
    """Return the sum of all caches' ``PinAudit`` counts; None if no cache evicts by client."""
    total = None
    for cache in caches:
        claims = getattr(cache, "claims", None)
        if isinstance(claims, Claims) and claims.by_client is not None:
            total = total or PinAudit()
            total.add(claims.audit)
    return total
