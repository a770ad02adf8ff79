"""The waiting queue of a replica, which is kept sorted by cached prefixes.

The cost of sorting is proportional to the number of changes, because SGLang's stable sort moves
only requests whose cached prefix has changed in length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.engine.kv_cache import AttachedRequest, MatchCache, N, PrefixCache
from fairbench.engine.sequence import Sequence
from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS, Place, head_of, place_at
from fairbench.schedulers.views import (
    NEEDS_CACHE_AWARE,
    ListScan,
    NothingRunning,
    RunningView,
    Waiting,
)

# A matched request's sort key is minus its number of cached tokens. Requests with the positive keys
# ``DEPRIORITIZED`` and ``ARRIVED`` come last in the queue.
DEPRIORITIZED, ARRIVED = 1, 2
# A waiting request's position consists of its sort key, its rank among equal keys, and the request.
Order = tuple[int, int, "Entry[Any]"]


class Entry(Generic[N]):
    """A waiting request; the pair ``key, rank`` is its position in the sorted list."""

    __slots__ = (
        "admitted", "before", "dirty", "head", "key", "node", "number", "place", "placed", "prompt",
        "rank", "request", "sequence", "since", "total",
    )  # fmt: skip

    def __init__(self, sequence: Sequence, number: int) -> None:
        self.sequence = sequence
        self.request = sequence.request
        self.prompt = sequence.prompt
        self.total = sequence.total
        self.number = number
        # ``since`` is the engine's number of computed prompt tokens when the request entered the
        # queue.
        self.since = 0
        self.node: N | None = None
        self.place: Place = (0, 0)
        self.key, self.rank = ARRIVED, number
        # ``before`` holds the stamp of the last refresh that moved the request in the queue, and
        # the request's key and rank before this move.
        self.before = (0, 0, 0)
        # ``head`` holds the first tokens of a cold request (a request with at most 32 cached
        # tokens).
        self.head: Prompt | None = None
        # ``dirty`` is true if the request's cached prefix may have changed since the last refresh.
        self.dirty = True
        self.placed = False
        self.admitted = False

    @property
    def order(self) -> Order:
        """The request's entry in the sorted list, computed at each access (no reference cycle)."""
        return self.key, self.rank, self

    def touched_at(self, refresh: int) -> tuple[int, int]:
        moved_at, key, rank = self.before
        return (key, rank) if moved_at == refresh else (self.key, self.rank)

    @property
    def matched(self) -> int:
        """The number of cached tokens by which LPM sorts requests.

        Precondition: the request is attached to a tree node.
        """
        assert self.node is not None
        depth, most = self.node.depth, self.total - 1
        return depth if depth < most else most


class MatchOrder:
    """Sorted lists: each client's waiting requests, and the first requests of all clients.

    The list of first requests avoids a scan of all clients for the head of the queue.
    """

    def __init__(self) -> None:
        self._lists: dict[str, list[Order]] = {}
        self._heads: list[Order] = []

    def add(self, order: Order) -> None:
        client = order[2].request.client
        mine = self._lists.get(client)
        if mine is None:
            self._lists[client] = [order]
            insort(self._heads, order)
        elif order < (head := mine[0]):
            del self._heads[bisect_left(self._heads, head)]
            insort(self._heads, order)
            mine.insert(0, order)
        else:
            insort(mine, order)

    def remove(self, order: Order) -> None:
        client = order[2].request.client
        mine, heads = self._lists[client], self._heads
        if mine[0] != order:
            del mine[bisect_left(mine, order)]
            return
        del mine[0], heads[bisect_left(heads, order)]
        if mine:
            insort(heads, mine[0])
        else:
            del self._lists[client]

    def heads(self) -> Iterator[Order]:
        """Return each client's first request, in the order of the queue."""
        return iter(self._heads)

    def orders_of(self, client: str) -> Iterator[Order]:
        """Return a client's requests in the order of the queue.

        Precondition: the client has a waiting request.
        """
        return iter(self._lists[client])

    def beyond(self, client: str, at: Order | None) -> Iterator[Order]:
        """Return a client's waiting requests in order, after position ``at``.

        If ``at`` is None, the iterator begins with the client's first waiting request.
        """
        mine = self._lists[client]
        first = 0 if at is None else bisect_right(mine, at)
        return map(mine.__getitem__, range(first, len(mine)))


class QueueScan(ListScan):
    """A scan over the waiting requests in the order of the queue."""

    def __init__(self, requests: Iterator[Request], waiting: Container[Request]) -> None:
        super().__init__([], waiting)
        self._order = requests


class MatchScan(ListScan):
    """A scan of waiting requests by cached tokens, which merges clients' sorted lists on demand."""

    def __init__(self, ordered: MatchOrder) -> None:
        super().__init__([], ())
        self._ordered = ordered
        self._heads = ordered.heads()
        # ``_head`` is the first request (with its position) of the next client in ``_heads``.
        self._head = next(self._heads, None)
        # ``_merge`` is a heap that merges the clients' requests by position. A heap entry has the
        # position of a client's next request, the client, and an iterator over its later requests.
        self._merge: list[tuple[Order, str, Iterator[Order]]] = []
        self._held: dict[str, None] = {}
        self._at: Order | None = None

    def __next__(self) -> Request:
        if (order := self._following()) is None:
            raise StopIteration
        self._at = order
        return order[2].request

    def unskip_all(self) -> None:
        super().unskip_all()
        for client in self._held:
            self._join(client, self._ordered.beyond(client, self._at))
        self._held.clear()

    def _following(self) -> Order | None:
        """Return the position of the next request whose client is not skipped, or None."""
        merge, skipped, credit = self._merge, self._skipped, self._credit
        while True:
            head = self._head
            if merge and (head is None or merge[0][0] < head):
                order, client, rest = merge[0]
                # An admitted request has left the queue, so the iterator skips the request.
                has_left = order[2].admitted
                if not has_left and (
                    client in skipped or (credit is not None and credit[client] <= 0)
                ):
                    heappop(merge)
                    self._held[client] = None
                    continue
                if (following := next(rest, None)) is None:
                    heappop(merge)
                else:
                    heapreplace(merge, (following, client, rest))
                if has_left:
                    continue
                return order
            if head is None:
                return None
            client = head[2].request.client
            self._head = next(self._heads, None)
            has_left = head[2].admitted
            if has_left or (client not in skipped and (credit is None or credit[client] > 0)):
                rest = self._ordered.orders_of(client)
                # Skip the client's first request, which this call returns or which was already
                # admitted.
                next(rest)
                self._join(client, rest)
                if has_left:
                    continue
                return head
            self._held[client] = None

    def _join(self, client: str, items: Iterator[Order]) -> None:
        if (first := next(items, None)) is not None:
            heappush(self._merge, (first, client, items))


REQUEST = attrgetter("request")
PS_PER_US = PS_PER_S // 10**6
FIRST = -(1 << 62)  # sort key that comes before the keys of all matched requests


@mypyc_attr(allow_interpreted_subclasses=True)
class MatchedQueue(ABC, Generic[N]):
    """The waiting queue of a simulated engine with a prefix cache (``WaitingView``).

    The engine calls ``enter`` for each arriving request and ``admit`` for each admitted request.
    The engine calls ``end_pass`` at the end of each pass.

    Args:
        cache: The cache against which the waiting requests are matched.
        cache_aware: Whether requests can be sorted by their cached prefixes.
        in_batch: Whether a cold request (with at most 32 cached tokens) comes last if an earlier
            cold request begins with the same tokens.
        match_us: CPU time, in microseconds, of matching one waiting request.
    """

    def __init__(
        self,
        cache: MatchCache[N],
        cache_aware: bool,
        *,
        in_batch: bool = True,
        match_us: float | None = None,
    ) -> None:
        self.running: RunningView = NothingRunning()
        self._cache = cache
        self._cache_aware = cache_aware
        self._in_batch = in_batch
        self._match_ps = round((match_us or 0) * PS_PER_US)
        self._queue: OrderedDict[int, Entry[N]] = OrderedDict()
        self._of_client: dict[str, OrderedDict[int, Entry[N]]] = {}
        self.entries: dict[Request, Entry[N]] = {}
        self._sorted = MatchOrder()
        self._leaving: list[Entry[N]] = []
        self._dirty: list[Entry[N]] = []
        self._fresh: list[Entry[N]] = []
        # Cold requests (at most 32 cached tokens) whose prompts begin alike form a group in
        # ``_cold``. ``_leader`` has the first request of each group; a group's other requests come
        # last in the queue. ``_joined`` has the newly queued requests of each group whose first
        # request may change.
        self._cold: dict[Prompt, dict[Entry[N], None]] = {}
        self._leader: dict[Prompt, Entry[N]] = {}
        self._joined: dict[Prompt, list[Entry[N]]] = {}
        # ``_number`` is the number of the last request added at the queue's tail, and ``_front`` of
        # the last request added at its head.
        self._number = self._front = 0
        self._low = self._high = 0
        self._looked = False
        # ``matched`` counts the requests matched with the cache since the last call of
        # ``matching_ps``.
        self.matched = 0
        self.computed_tokens = 0
        if cache_aware:
            cache.on_moved = self._on_moved

    # Interface ``WaitingView``

    def __len__(self) -> int:
        return len(self.entries)

    def clients(self) -> Collection[str]:
        return self._of_client.keys()

    def oldest(self, client: str) -> Request:
        return next(iter(self._of_client[client].values())).request

    def queue_order(self) -> QueueScan:
        return QueueScan(map(REQUEST, self._queue.values()), self.entries)

    def match_order(self, *, refresh: bool = True) -> MatchScan:
        if not self._cache_aware:
            raise UsageError(NEEDS_CACHE_AWARE)
        if refresh:
            self.matched += len(self.entries)
            self._refresh()
        elif not self._looked:
            self.pass_unmatched()
        self._looked = True
        return self._match_scan()

    def matched_tokens(self, request: Request) -> int:
        entry = self.entries[request]
        if entry.node is None or entry.dirty:
            return self.matched_now(request)
        return entry.matched

    # Methods of subclasses

    @abstractmethod
    def matched_now(self, request: Request) -> int:
        """Match a request with the cache; return its number of cached tokens."""

    def pass_unmatched(self) -> None:
        """Mark cached prefixes as used after a scheduling pass without prefix matching."""

    # Calls by engines

    def matching_ps(self) -> int:
        """Return the CPU time (ps) of prefix matching since the last call of ``matching_ps``."""
        spent_ps, self.matched = self.matched * self._match_ps, 0
        return spent_ps

    def enter(self, sequence: Sequence, *, first: bool = False) -> None:
        """Add a new or retracted request at the tail of the queue, or at its head if ``first``."""
        if first:
            self._front -= 1
        else:
            self._number += 1
        entry: Entry[N] = Entry(sequence, self._front if first else self._number)
        entry.since = self.computed_tokens
        if first:
            entry.key = FIRST
        client = entry.request.client
        if (mine := self._of_client.get(client)) is None:
            mine = self._of_client[client] = OrderedDict()
        self._queue[entry.number] = mine[entry.number] = entry
        if first:
            for queue in (self._queue, mine):
                queue.move_to_end(entry.number, last=False)
        self.entries[entry.request] = entry
        if self._cache_aware:
            self._dirty.append(entry)
            self._fresh.append(entry)

    def sequence_of(self, request: Request) -> Sequence:
        """Return the engine's sequence of a waiting request.

        Raises KeyError if the request is not waiting.
        """
        return self.entries[request].sequence

    def __contains__(self, request: object) -> bool:
        return request in self.entries

    def withdraw(self, request: Request) -> None:
        """Remove a waiting request that will never run.

        Precondition: no admission pass is in progress.
        """
        self.admit(request)
        self.end_pass()

    def admit(self, request: Request) -> None:
        """Remove an admitted request from the queue.

        Later scans of the queue in the same admission pass skip the admitted request.
        """
        entry = self.entries.pop(request)
        entry.admitted = True
        mine = self._of_client[request.client]
        del mine[entry.number]
        if not mine:
            del self._of_client[request.client]
        self._leaving.append(entry)

    def end_pass(self) -> None:
        """Delete the requests that an admission pass admitted; the pass's scans become invalid."""
        for entry in self._leaving:
            del self._queue[entry.number]
            if not self._cache_aware:
                continue
            if entry.placed:
                self._sorted.remove(entry.order)
            self._leave_group(entry)
            if entry.node is not None:
                self._cache.detach(entry)
        self._leaving.clear()
        self._looked = False

    # Order of requests

    def _match_scan(self) -> MatchScan:
        for entry in self._fresh:
            if not entry.admitted:
                entry.placed = True
                self._sorted.add(entry.order)
        self._fresh.clear()
        return MatchScan(self._sorted)

    def _on_moved(self, waiter: AttachedRequest[N]) -> None:
        assert isinstance(waiter, Entry)
        if not waiter.dirty:
            waiter.dirty = True
            self._dirty.append(waiter)

    def _refresh(self) -> None:
        """Match requests whose cached prefix may have changed, and sort them as SGLang does."""
        changed = {entry: None for entry in self._dirty if not entry.admitted}
        for entry in self._dirty:
            entry.dirty = False
        self._dirty.clear()
        self._cache.refresh(changed)
        for entry in list(changed):
            self._regroup(entry)
        self._elect_leaders(changed)
        self._move(changed, self._cache.refresh_stamp)
        # The sorted list contains all new requests, because ``_move`` has added them.
        self._fresh.clear()

    def _regroup(self, entry: Entry[N]) -> None:
        """Add a cold request to its group, or remove a request that is not cold from its group.

        A request is cold if at most ``IN_BATCH_TOKENS`` prompt tokens are cached. Cold requests
        whose prompts begin with the same tokens are a group.
        """
        assert entry.node is not None
        cold = self._in_batch and entry.node.depth <= IN_BATCH_TOKENS
        if cold == (entry.head is not None):
            return
        if not cold:
            self._leave_group(entry)
        elif (head := head_of(entry.prompt)) is not None:
            entry.head = head
            self._cold.setdefault(head, {})[entry] = None
            self._joined.setdefault(head, []).append(entry)

    def _leave_group(self, entry: Entry[N]) -> None:
        if (head := entry.head) is None:
            return
        entry.head = None
        group = self._cold[head]
        del group[entry]
        if not group:
            del self._cold[head]
            self._leader.pop(head, None)
        elif self._leader.get(head) is entry:
            del self._leader[head]
            self._joined.setdefault(head, [])

    def _elect_leaders(self, changed: dict[Entry[N], None]) -> None:
        """Make each group's first request its leader; add new and former leaders to ``changed``.

        The queue sorts a group's leader by the length of its cached prefix. All requests of a group
        except the leader (the first request) go to the end of the queue.
        """
        for head, joined in self._joined.items():
            if not (group := self._cold.get(head)):
                continue
            old = self._leader.get(head)
            candidates = group if old is None else [old, *(e for e in joined if e in group)]
            new = min(candidates, key=lambda entry: (entry.key, entry.rank))
            if new is not old:
                self._leader[head] = new
                changed[new] = None
                if old is not None:
                    changed[old] = None
        self._joined.clear()

    def _move(self, changed: dict[Entry[N], None], refresh: int) -> None:
        """Move changed requests to the positions that a stable sort would give them."""
        # ``moves`` lists each request that moves, with its old key, old rank and new key.
        moves: list[tuple[int, int, int, Entry[N]]] = []
        for entry in changed:
            last = entry.head is not None and self._leader[entry.head] is not entry
            key = DEPRIORITIZED if last else -entry.matched
            if key != entry.key:
                moves.append((entry.key, entry.rank, key, entry))
                entry.before = (refresh, entry.key, entry.rank)
        moves.sort()
        # A request that moves forward is placed behind all requests that already have its new key.
        for old, _, key, entry in moves:
            if old > key:
                self._high += 1
                self._place(entry, key, self._high)
        # A request that moves backward is placed before all requests that already have its new key.
        for old, _, key, entry in reversed(moves):
            if old < key:
                self._low -= 1
                self._place(entry, key, self._low)

    def _place(self, entry: Entry[N], key: int, rank: int) -> None:
        if entry.placed:
            self._sorted.remove((entry.key, entry.rank, entry))
        entry.key, entry.rank, entry.placed = key, rank, True
        self._sorted.add((key, rank, entry))


# SGLang counts the admission passes that look up no cached prefix. Every 32nd pass without a
# look-up marks the cached prefixes of the first ``TOUCH_COUNT`` waiting requests as used.
TOUCH_EVERY, TOUCH_COUNT = 32, 128


class WaitingQueue(MatchedQueue[N]):
    """A waiting queue that matches and marks cached prefixes as SGLang does.

    If ``touches`` is set, the prefixes of the queue's first requests are marked as used in every
    32nd admission pass that matched no request with the cache.
    """

    def __init__(
        self,
        cache: PrefixCache[N],
        cache_aware: bool,
        *,
        in_batch: bool = True,
        match_us: float | None = None,
        touches: bool = True,
    ) -> None:
        super().__init__(cache, cache_aware, in_batch=in_batch, match_us=match_us)
        self._tree = cache
        self._touches = touches
        self._unmatched_passes = 0
        self.ended: list[Sequence] = []  # finished requests that are still in SGLang's batch

    def matched_now(self, request: Request) -> int:
        return self.match(request)[0].depth

    def match(self, request: Request) -> tuple[N, Place]:
        """Match a waiting prompt without its last token against the cache; mark the match used."""
        entry = self.entries[request]
        node, place, limit = entry.node, entry.place, entry.total - 1
        if node is None:
            node, place = self._tree.root, (0, 0)
        # The engine computes the last token of a prompt even if the whole prompt is cached.
        elif node.depth > limit and node.parent is not None:
            node = node.parent
            place = place_at(entry.prompt, node.depth)
        node, place = self._tree.descend(node, entry.prompt, place, limit)
        self._tree.touch(node)
        return node, place

    # Sorting by schedulers

    def batch(self) -> Iterable[Request]:
        return chain((one.request for one in self.running), (one.request for one in self.ended))

    def matches(self) -> list[Waiting]:
        """Match all waiting requests with the cache, in queue order, as SGLang does."""
        self._looked = True
        self.matched += len(self.entries)
        heads: set[Prompt] = set()
        return [self._waiting(entry, heads) for entry in self._queue.values()]

    def _waiting(self, entry: Entry[N], heads: set[Prompt]) -> Waiting:
        """Match a prompt with the prefix cache.

        ``heads`` holds the starts of the prompts matched so far. A prompt with such a start is a
        duplicate.
        """
        node: Any = self._tree.match(entry.prompt, entry.total)[0]
        self._tree.touch(node)
        cold = self._in_batch and node.depth <= IN_BATCH_TOKENS
        head = head_of(entry.prompt) if cold else None
        duplicate = head in heads
        if head is not None:
            heads.add(head)
        cached, waited = min(node.depth, entry.total - 1), self.computed_tokens - entry.since
        return Waiting(entry.request, entry.total, cached, duplicate, waited, entry.number, node)

    def sort(self, scheduler: LocalScheduler) -> None:
        """Let the scheduler sort the queue; call ``pass_unmatched`` if it matched no request."""
        assert scheduler.sort_queue is not None, "precondition: the scheduler sorts the queue"
        order = scheduler.sort_queue(self)
        if order is not None:
            if len(order) != len(self.entries) or set(order) != self.entries.keys():
                raise RunFailed(
                    f"{scheduler.name}: sort_queue must return every waiting request exactly once"
                )
            for request in order:
                self._queue.move_to_end(self.entries[request].number)
        if not self._looked:
            self.pass_unmatched()

    def pass_unmatched(self) -> None:
        """Mark the first requests' prefixes as used in every 32nd pass that looks up no prefix."""
        if self._touches and self.entries:
            if self._unmatched_passes % TOUCH_EVERY == 0:
                self.touch_head(TOUCH_COUNT)
            self._unmatched_passes += 1

    def touch_head(self, count: int) -> None:
        """Mark the prefixes of the first ``count`` requests as used, in reverse order."""
        cache = self._tree
        if self._cache_aware:
            head = [self.entries[request] for request in islice(self._match_scan(), count)]
        else:
            head = list(islice(self._queue.values(), count))
        for entry in reversed(head):
            cache.touch(cache.match(entry.prompt, entry.total)[0])


def retraction_order(
    scheduler: LocalScheduler, waiting: WaitingQueue[N], running: Iterable[Sequence], now_s: float
) -> list[Sequence]:
    """Return the running sequences in the scheduler's retraction order.

    Raises RunFailed unless the scheduler returns every running request exactly once.
    """
    of_request = {sequence.request: sequence for sequence in running}
    order_victims = scheduler.retraction_order
    assert order_victims is not None, "precondition: the scheduler has a retraction order"
    wanted = order_victims(waiting.running, now_s)
    if len(wanted) != len(of_request) or set(wanted) != set(of_request):
        raise RunFailed(
            f"{scheduler.name}: retraction_order must return every running request exactly once"
        )
    return [of_request[request] for request in wanted]
