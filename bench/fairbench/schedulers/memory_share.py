"""Fair shares of a worker's KV memory, which decide which waiting requests may be admitted.

An eviction policy by client (``ClientEviction``) evicts cached tokens of clients above their memory
share. Tokens that running requests use (pinned tokens) cannot be evicted. Since pinned tokens stay
in memory, ``MemoryShare`` decides which requests may be admitted.

- A request is *within the share* of its client if the share covers the client's pinned tokens and
  the tokens that the request would pin. A request within the share may be admitted. A client
  without pinned tokens may always run one request, even if the request exceeds the client's share.
- A request that exceeds its client's share *borrows* memory. A borrowing request may be admitted
  only if no other client waits with a request within its share. A request that borrows memory must
  fit into the free memory plus the cached tokens that exceed clients' shares. No cached token
  within a client's share is evicted.

Requests that may not be admitted now are hidden from the local scheduler. The eviction policy
defines the clients' shares of memory. Output tokens are not counted at admission, because output
lengths are not known in advance. The page docs/appendix/theory.md proves a theorem on fair shares
of memory, and engines check the theorem's assumption during a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from fairbench.core import Request
from fairbench.schedulers.views import RunningView, Scan, WaitingView


class PromptTokens(NamedTuple):
    """The memory that the prompt of a waiting request would take, in tokens.

    - ``new`` is the number of prompt tokens that are not cached.
    - ``pins`` is the number of prompt tokens, new or cached, that no running request uses yet.
    """

    new: int
    pins: int


class ClientMemory(Protocol):
    """The KV memory of a worker by client, in tokens.

    A token that k clients use counts as 1/k token for each client.
    """

    @property
    def free(self) -> int:
        """The free memory in tokens; cached tokens do not count as free."""

    @property
    def clients(self) -> Iterable[str]:
        """The clients that use the worker's memory."""

    def held(self, client: str) -> float:
        """Return the tokens that a client uses or has in the cache."""

    def unpinned(self, client: str) -> float:
        """Return the client's cached tokens that no running request uses."""

    def demand(self, request: Request) -> PromptTokens:
        """Return the memory that a waiting request would take, without changing the cache."""


class MemoryShare:
    """The rules by which a worker admits waiting requests under fair shares of KV memory.

    The host calls ``begin`` before each admission pass. The returned view is passed to the local
    scheduler unless the view has no clients.

    Args:
        share: Function that returns the memory share of a client in tokens.
        memory: The clients' KV memory at the worker.
        name_of: Function that returns a client's name in ``memory`` and ``share``. In a real
            engine, all clients unknown to the eviction policy share a name.
    """

    def __init__(
        self,
        share: Callable[[str], float],
        memory: ClientMemory,
        name_of: Callable[[str], str] = str,
    ) -> None:
        self._share = share
        self._memory = memory
        self._name_of = name_of
        self._waiting: WaitingView
        self._count = 0
        # ``_promised`` counts the tokens of admitted prompts for which no memory is allocated yet.
        # ``_will_pin`` maps each client to its pinned tokens plus the client's part of
        # ``_promised``.
        self._promised = 0
        self._will_pin: dict[str, float] = {}
        self._demands: dict[Request, PromptTokens] = {}

    def begin(self, waiting: WaitingView, pending: Mapping[str, int]) -> ShareView:
        """Begin a pass over the ``waiting`` requests, and return the view for the scheduler.

        ``pending`` maps each client, by its name in ``memory``, to the prompt tokens of its running
        requests that have no memory yet.
        """
        self._waiting, self._count = waiting, len(waiting)
        self._demands.clear()
        self._promised = sum(pending.values())
        self._will_pin = {one: self._pinned_now(one) + more for one, more in pending.items()}
        return ShareView(waiting, self)

    def admits(self, request: Request) -> bool:
        """Return whether the memory shares allow the admission of a waiting request now."""
        self._note_admissions()
        demand, client = self._memory.demand(request), self._name_of(request.client)
        if client not in self._will_pin:
            self._will_pin[client] = self._pinned_now(client)
        admitted = self._is_within(client, demand) or (
            demand.new <= self._spare(client, demand) and not self._is_wanted(client)
        )
        if admitted:
            self._demands[request] = demand
        return admitted

    def _note_admissions(self) -> None:
        """Count the memory of requests that were admitted since this method was last called."""
        if len(self._waiting) == self._count:
            return
        self._count = len(self._waiting)
        for request in [one for one in self._demands if one not in self._waiting]:
            demand = self._demands.pop(request)
            self._promised += demand.new
            self._will_pin[self._name_of(request.client)] += demand.pins

    def _pinned_now(self, client: str) -> float:
        return self._memory.held(client) - self._memory.unpinned(client)

    def _is_within(self, client: str, demand: PromptTokens) -> bool:
        pinned = max(self._pinned_now(client), self._will_pin.get(client, 0.0))
        return pinned < 1 or pinned + demand.pins <= self._share(client)

    def _spare(self, borrower: str, demand: PromptTokens) -> float:
        """Return the free tokens plus the evictable tokens by which clients exceed their shares.

        The cached prefix of the request that borrows memory does not count as evictable, because
        this request needs the prefix.
        """
        memory = self._memory
        spare: float = memory.free - self._promised
        for client in memory.clients:
            kept = demand.pins - demand.new if client == borrower else 0
            above = memory.held(client) - self._share(client)
            spare += max(0.0, min(memory.unpinned(client) - kept, above))
        return spare

    def _is_wanted(self, client: str) -> bool:
        waiting, name_of = self._waiting, self._name_of
        others = (one for one in waiting.clients() if name_of(one) != client)
        return any(
            self._is_within(name_of(one), self._memory.demand(waiting.oldest(one)))
            for one in others
        )


class ShareView:
    """A local scheduler's view of the waiting requests that may be admitted now.

    If a request may not be admitted, later requests of its client are skipped, too. ``len(view)``
    counts all waiting requests.
    """

    def __init__(self, view: WaitingView, share: MemoryShare) -> None:
        self._view, self._share = view, share

    @property
    def running(self) -> RunningView:
        return self._view.running

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, request: object) -> bool:
        return request in self._view

    def clients(self) -> Collection[str]:
        """Return the clients whose oldest request may be admitted now."""
        admits, oldest = self._share.admits, self._view.oldest
        return [client for client in self._view.clients() if admits(oldest(client))]

    def oldest(self, client: str) -> Request:
        return self._view.oldest(client)

    def queue_order(self) -> Scan:
        return ShareScan(self._view.queue_order(), self._share)

    def match_order(self, *, refresh: bool = True) -> Scan:
        return ShareScan(self._view.match_order(refresh=refresh), self._share)

    def matched_tokens(self, request: Request) -> int:
        return self._view.matched_tokens(request)


class ShareScan:
    """A scan of the queue that skips clients whose requests may not be admitted."""

    def __init__(self, scan: Scan, share: MemoryShare) -> None:
        self._scan, self._admits = scan, share.admits
        self.skip, self.skip_debtors = scan.skip, scan.skip_debtors
        self.unskip_all = scan.unskip_all

    def __iter__(self) -> ShareScan:
        return self

    def __next__(self) -> Request:
        while not self._admits(request := next(self._scan)):
            self._scan.skip(request.client)
        return request
