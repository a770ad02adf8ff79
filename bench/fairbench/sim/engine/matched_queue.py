"""A waiting queue in the order of its matches, maintained so that no pass has to walk through it.

The order equals that of ``list_view.ListView`` (tests compare them), at a cost proportional to the
changes: match lengths change only where the tree changes, and SGLang's stable in-place sort only
moves requests whose match length changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection
from typing import Generic

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS, head_of
from fairbench.schedulers.views import NothingRunning, RunningView
from fairbench.sim.engine.scans import DEPRIORITIZED, Entry, MatchOrder, MatchScan, QueueScan
from fairbench.sim.prefix_cache import MatchCache, N, Waiter
from fairbench.sim.sequence import Sequence

PS_PER_US = PS_PER_S // 10**6
FIRST = -(1 << 62)  # the key before every match


@mypyc_attr(allow_interpreted_subclasses=True)
class MatchedQueue(ABC, Generic[N]):
    """A WaitingView for the host of a cache. Match order is kept only if ``cache_aware``.

    Matching a waiting request takes ``match_us`` of CPU time: ``prefix_match_us`` of the engine.
    With ``in_batch``, a cold request that shares its first tokens with one ahead of it comes last.
    Use: ``enter`` arrivals; in a pass let the scheduler look, ``admit`` its admissions, then
    ``end_pass``.
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
        self._fresh: list[Entry[N]] = []  # newcomers without a position in the sorted list
        self._cold: dict[Prompt, dict[Entry[N], None]] = {}
        self._leader: dict[Prompt, Entry[N]] = {}
        self._joined: dict[Prompt, list[Entry[N]]] = {}  # groups whose leader may have changed
        self._number = self._front = 0
        self._low = self._high = 0
        self._looked = False  # whether match_order has been called in this pass
        self.matched = 0  # waiting requests, summed over the refreshes since ``matching_ps``
        if cache_aware:
            cache.on_moved = self._on_moved

    # The WaitingView.

    def __len__(self) -> int:
        return len(self.entries)

    def clients(self) -> Collection[str]:
        return self._of_client.keys()

    def oldest(self, client: str) -> Request:
        return next(iter(self._of_client[client].values())).request

    def queue_order(self) -> QueueScan:
        return QueueScan(iter(self._queue.values()))

    def match_order(self, *, refresh: bool = True) -> MatchScan:
        assert self._cache_aware, "match order is kept only for a cache-aware scheduler"
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

    # Methods of a subclass.

    @abstractmethod
    def matched_now(self, request: Request) -> int:
        """Match a request that has had no refresh since its match may have changed."""

    def pass_unmatched(self) -> None:
        """Treat the queue as the engine does in a pass that matches no request."""

    # Methods for the host.

    def matching_ps(self) -> int:
        """Return the CPU time (ps) of the matching since the last call."""
        spent_ps, self.matched = self.matched * self._match_ps, 0
        return spent_ps

    def enter(self, sequence: Sequence, *, first: bool = False) -> None:
        """Take in an arrival or a retracted request: at the tail, or ``first``, at the head."""
        if first:
            self._front -= 1
        else:
            self._number += 1
        entry: Entry[N] = Entry(sequence, self._front if first else self._number)
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
        """Return the request's waiting sequence. Raises KeyError if it is not waiting."""
        return self.entries[request].sequence

    def __contains__(self, request: object) -> bool:
        return request in self.entries

    def withdraw(self, request: Request) -> None:
        """Remove a request that will not run; not within a pass."""
        self.admit(request)
        self.end_pass()

    def admit(self, request: Request) -> None:
        """Remove an admitted request from the view; scans of this pass skip the request."""
        entry = self.entries.pop(request)
        entry.admitted = True
        mine = self._of_client[request.client]
        del mine[entry.number]
        if not mine:
            del self._of_client[request.client]
        self._leaving.append(entry)

    def end_pass(self) -> None:
        """Drop admitted requests. No scan may be used afterwards."""
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

    # Maintenance of the order.

    def _match_scan(self) -> MatchScan:
        """Return a scan in match order; most newcomers get their position in a refresh instead."""
        for entry in self._fresh:
            if not entry.admitted:
                entry.placed = True
                self._sorted.add(entry.order)
        self._fresh.clear()
        return MatchScan(self._sorted)

    def _on_moved(self, waiter: Waiter[N]) -> None:
        assert isinstance(waiter, Entry)
        if not waiter.dirty:
            waiter.dirty = True
            self._dirty.append(waiter)

    def _refresh(self) -> None:
        """Change the list as SGLang's matching and stable sort would."""
        changed = {entry: None for entry in self._dirty if not entry.admitted}
        for entry in self._dirty:
            entry.dirty = False
        self._dirty.clear()
        self._cache.refresh(changed)
        for entry in list(changed):
            self._regroup(entry)
        self._elect_leaders(changed)
        self._move(changed, self._cache.refresh_stamp)
        self._fresh.clear()  # all fresh requests have moved

    def _regroup(self, entry: Entry[N]) -> None:
        """Put a request into the group of its first 32 tokens if cold, and out of it if warm."""
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
        """Elect the first request of each group; it is matched normally, the others come last."""
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
        """Give changed requests the places that a stable sort of the old list would give them."""
        moves: list[tuple[int, int, int, Entry[N]]] = []  # key and rank together are unique
        for entry in changed:
            last = entry.head is not None and self._leader[entry.head] is not entry
            key = DEPRIORITIZED if last else -entry.matched
            if key != entry.key:
                moves.append((entry.key, entry.rank, key, entry))
                entry.before = (refresh, entry.key, entry.rank)
        moves.sort()
        for old, _, key, entry in moves:  # moved forward: placed behind those with the same key
            if old > key:
                self._high += 1
                self._place(entry, key, self._high)
        # moved backward: placed before those with the same key
        for old, _, key, entry in reversed(moves):
            if old < key:
                self._low -= 1
                self._place(entry, key, self._low)

    def _place(self, entry: Entry[N], key: int, rank: int) -> None:
        if entry.placed:
            self._sorted.remove((entry.key, entry.rank, entry))
        entry.key, entry.rank, entry.placed = key, rank, True
        self._sorted.add((key, rank, entry))
