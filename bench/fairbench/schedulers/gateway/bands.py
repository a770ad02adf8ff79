"""The gateway: bands of priority before the cluster, with limits on their size and waiting time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from fairbench.core import Request
from fairbench.schedulers.base import Read
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.queue import GatewayQueue, HoldsRequests, Send
from fairbench.schedulers.gateway.registry import GatewayParams
from fairbench.schedulers.peers.counters import SharedCounters
from fairbench.schedulers.peers.totals import Changes, Heard, Sums, Totals


class Gateway(HoldsRequests):
    """Strict priority between bands with a queue each; refuses requests beyond its limits.

    The rules are those of llm-d's flow control (llm-d-router @7c6ba75), by numbers of requests
    only. ``make_queue`` makes the queue of a band; all share one detector and one router.
    """

    def __init__(
        self,
        make_queue: Callable[[], GatewayQueue],
        params: GatewayParams,
        limits: ClientLimits | None = None,
    ) -> None:
        self.params = params
        self._limits = limits
        self._make_queue = make_queue
        self._bands: dict[int, GatewayQueue] = {}  # the highest priority first
        # the band of each request that is queued or in progress
        self._band_of: dict[Request, int] = {}
        self._held: dict[Request, None] = {}
        self._held_in: defaultdict[int, dict[Request, None]] = defaultdict(
            dict
        )  # band -> its requests
        # a heap of the times at which requests become too old
        self._ends: list[tuple[float, int, Request]] = []
        self._numbers = count()
        self._displaced: list[Request] = []
        self.others = Heard()  # the gateways of other routers
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._held))

    @property
    def balances(self) -> Mapping[int, Mapping[str, float]]:
        """Return the balances of clients in each band's policy."""
        return {band: queue.scheduler.balances() for band, queue in self._bands.items()}

    def enter(self, request: Request, now_s: float) -> bool:
        priority = self.params.priority.get(request.client, request.priority)
        queue = self._band(priority)
        if 0 < self.params.band_requests <= len(self._held_in[priority]):
            return False
        victim = None
        if 0 < self.params.max_requests <= len(self._held):
            victim = self._lowest_below(priority)
            if victim is None:
                return False
        if not self._take_in(request, priority, queue, now_s):
            return False
        if victim is not None:
            self.withdraw(victim)
            self._displaced.append(victim)
        self._band_of[request] = priority
        self._held[request] = self._held_in[priority][request] = None
        if self.params.ttl_s:
            heappush(self._ends, (now_s + self.params.ttl_s, next(self._numbers), request))
        return True

    def _take_in(self, request: Request, priority: int, queue: GatewayQueue, now_s: float) -> bool:
        """Put the request into its band or in line for it; return False if it is refused."""
        if self._limits is None:
            return queue.enter(request, now_s)
        if not self._limits.enters(request, priority):
            return True
        entered = queue.enter(request, now_s)
        if not entered:
            self._limits.over(request, 0)
        return entered

    def shed(self, now_s: float) -> Collection[Request]:
        gone, self._displaced = self._displaced, []
        self._forget_gone()
        while self._ends and self._ends[0][0] <= now_s:
            request = self._ends[0][2]
            self.withdraw(request)
            gone.append(request)
            self._forget_gone()
        return gone

    def release(self, now_s: float, send: Send) -> None:
        def sent(request: Request, worker: int) -> None:
            self._hold_no_more(request)
            send(request, worker)

        for request in self._limits.freed() if self._limits is not None else ():
            if not self._bands[self._band_of[request]].enter(request, now_s):
                self._give_up(request)
        for queue in self._bands.values():
            queue.release(now_s, sent)

    def wake_s(self, now_s: float) -> float | None:
        self._forget_gone()
        if self._displaced:
            return now_s
        times_s = [queue.wake_s(now_s) for queue in self._bands.values()]
        if self._ends:
            times_s.append(self._ends[0][0])
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def moved(self, request: Request, worker: int | None) -> None:
        self._bands[self._band_of[request]].moved(request, worker)

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        self._bands[self._band_of.pop(request)].finish(request, output_tokens, now_s, read)
        if self._limits is not None:
            self._limits.over(request, output_tokens)

    def withdraw(self, request: Request) -> None:
        if request in self._displaced:  # already displaced, but not yet reported
            self._displaced.remove(request)
            return
        self._hold_no_more(request)
        queue = self._bands[self._band_of.pop(request)]
        if self._limits is not None:
            if self._limits.withdraw(request):
                return
            self._limits.over(request, 0)
        queue.withdraw(request)

    def _give_up(self, request: Request) -> None:
        """Shed a request that its policy refuses at its turn; the host learns of it later."""
        assert self._limits is not None
        self._limits.over(request, 0)
        self._hold_no_more(request)
        del self._band_of[request]
        self._displaced.append(request)

    def _hold_no_more(self, request: Request) -> None:
        del self._held[request], self._held_in[self._band_of[request]][request]

    # Several bands.

    @property
    def shares_counters(self) -> bool:
        """Return whether this is one of several gateways, and its policy can share counters."""
        return self._make_queue().shared is not None

    def join_peers(self) -> None:
        """Do nothing: the queues support sharing from the start."""

    def export_totals(self, since: int = 0) -> Totals:
        shared = self._shared()
        for counters in shared.values():
            for client in counters.changed():
                self._changes.note(client)
        changed = self._changes.exported(since)
        raised: dict[str, dict[int, float]] = {}
        for band, of in shared.items():
            for client in of.raised if changed is None else changed:
                if client in of.raised:
                    raised.setdefault(client, {})[band] = of.raised[client]
        totals = Totals(self._changes.version, self._charged(changed), raised, self._waiting())
        return totals if changed is None else totals._replace(since=since)

    def _waiting(self) -> dict[str, tuple[int, ...]]:
        waiting: dict[str, tuple[int, ...]] = {}
        for band, queue in self._bands.items():
            for client in queue.waiting():
                waiting[client] = (*waiting.get(client, ()), band)
        return waiting

    def _shared(self) -> dict[int, SharedCounters]:
        queues = self._bands.items()
        return {band: queue.shared for band, queue in queues if queue.shared is not None}

    def charged_totals(self) -> Sums:
        return self._charged(None)

    def _charged(self, clients: Collection[str] | None) -> dict[str, dict[int, float]]:
        charged: dict[str, dict[int, float]] = {}
        for band, of in self._shared().items():
            known = of.clients()
            for client in known if clients is None else clients:
                if client in known:
                    charged.setdefault(client, {})[band] = of.charged(client)
        return charged

    def heard_totals(self) -> Mapping[str, Totals]:
        return self.others.latest

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Add the charges of another router's gateway, whose waiting clients count here, too."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return
        for band in sorted(self.others.places(origin)):
            shared = self._band(band).shared
            if shared is not None:
                there = [client for client, bands in totals.waiting.items() if band in bands]
                shared.hear(origin, newly, totals.raised, there, band, now_s)

    def forget_origin(self, origin: str) -> None:
        self.others.forget(origin)
        for shared in self._shared().values():
            shared.forget(origin)

    @property
    def ahead(self) -> float:
        """The largest lead of a served client over a client that waited at another router."""
        found = [queue.shared.ahead for queue in self._bands.values() if queue.shared is not None]
        return max(found, default=0.0)

    def _band(self, priority: int) -> GatewayQueue:
        if priority not in self._bands:
            self._bands[priority] = self._make_queue()
            self._bands = dict(sorted(self._bands.items(), reverse=True))
        return self._bands[priority]

    def _lowest_below(self, priority: int) -> Request | None:
        """Return the request to displace for this priority: the latest of the lowest band."""
        lowest = min((band for band, held in self._held_in.items() if held), default=priority)
        return next(reversed(self._held_in[lowest])) if lowest < priority else None

    def _forget_gone(self) -> None:
        """Remove requests that are no longer queued from the top of the heap."""
        while self._ends and self._ends[0][2] not in self._held:
            heappop(self._ends)
