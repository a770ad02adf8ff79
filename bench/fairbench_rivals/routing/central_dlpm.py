"""Centralised DLPM, the strawman of [DLPM] §5.1, with a queue and credits for a whole cluster.

``CentralRouter`` sends requests to replicas, and ``CentralOrder`` manages the queue and the
credits. The local scheduler ``CentralWorker`` reports a replica's outputs, and makes the replica
wait for the router's decisions about new requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import NoBound, Prompt, Request, Segment
from fairbench.schedulers.base import Read, Selection, Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.location_tree import BoundedTree
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.schedulers.views import ListScan, ListView, Room

# The cost of a decision was measured for figure 4, with 8 replicas and 200 queued requests
# (docs/appendix/figures.md): 2.45 ms for messages, and 3.22 ms for matching and sorting 1,600 pairs
# of a request and a replica. A central decision takes 39% as long as a decode step of 25 requests;
# the DLPM paper (§5.1) reports 40%.
# seconds per decision for messages to one replica, measured with 8 replicas
MESSAGES_S = 2.45e-3 / 8
# seconds per decision for matching and sorting one pair of a queued request and a replica
PAIR_S = 3.22e-3 / (8 * 200)


class CentralRouter(PrefixRouter):
    """A router that sends a replica only requests that the replica's next step can start.

    Among the replicas with free memory and slots, the router chooses the replica with the longest
    cached prefix, according to its own copies of the replicas' prefix trees. Ties go to the replica
    with the fewest requests in flight. The router learns of evictions late, as D2LPM does. If a
    replica does not report its free memory, the router sends it requests without waiting.
    """

    name = "central-dlpm"
    holds = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM; each request is charged once and never preempted."""

        constants: ClassVar[tuple[str, ...]] = (
            "charge", "charge_recompute", "preempt", "sharing", "tenants",
        )  # fmt: skip

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self._tree = BoundedTree()
        # requests that each worker has received but not started, in order of arrival, with their
        # uncached tokens
        self._handed: dict[int, dict[Request, int]] = {worker: {} for worker in range(workers)}
        # number of uncached tokens of each unfinished request
        self.extends: dict[Request, int] = {}
        # bit mask of the workers that can start a request
        self.open = self._fleet.everyone
        # whether a request was sent to a replica since the last call of ``look``
        self.routed = False
        self.order: CentralOrder = CentralOrder(self)

    @property
    def workers(self) -> int:
        """The number of live workers."""
        return len(self._fleet.workers)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.order.prepare(setup)

    def route(self, request: Request, now_s: float) -> int | None:
        found = self._tree.find(request.prompt)
        held, most = self._tree.cached_tokens(found.node), request.input_tokens - 1
        match = {worker: min(held.get(worker, 0), most) for worker in self._fleet.workers}
        fitting = [worker for worker in match if self._fits(request, worker)]
        if not fitting:
            return None
        longest = max(match[worker] for worker in fitting)
        best = sum(1 << worker for worker in fitting if match[worker] == longest)
        worker = self._fleet.least_loaded(best)
        self.extends[request] = request.input_tokens - longest
        self._handed[worker][request] = request.input_tokens - longest
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        self.routed = True
        return worker

    def look(self) -> None:
        """Find the workers that can start one more request beyond the requests already sent."""
        self.routed = False
        self.open = sum(1 << w for w in self._fleet.workers if _is_open(self._room(w)))

    def match(self, prompt: Prompt) -> int:
        """Return the longest cached prefix, in tokens, at a worker that can start a request."""
        levels = self._tree.levels(self._tree.find(prompt).node)
        return next((tokens for tokens, workers in levels if workers & self.open), 0)

    def _fits(self, request: Request, worker: int) -> bool:
        if (room := self._room(worker)) is None or not self._fleet.unfinished_at(worker):
            return True  # An idle worker itself refuses a request that exceeds its KV pool.
        return _is_open(room) and _needed(request) < room.tokens

    def _room(self, worker: int) -> Room | None:
        """Return the slots and tokens that unstarted requests leave free, or None if unknown."""
        load = None if self.setup.fleet is None else self.setup.fleet.load(worker)
        if load is None or load.room is None or load.queued is None:
            return None
        handed, room = self._handed[worker], load.room
        for request in list(handed)[: max(0, len(handed) - load.queued)]:
            # A worker starts requests in the order in which they were sent to it, so all earlier
            # requests have also started.
            del handed[request]
        if load.queued > len(handed):
            # A preempted request waits at the worker, and takes precedence over all new requests.
            return Room(0, 0, 0)
        prompts = sum(handed.values())
        tokens = room.tokens - sum(map(_needed, handed))
        return Room(room.slots - len(handed), tokens, room.prompt_tokens - prompts)

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self._handed.get(worker, {}).pop(request, None)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self.extends.pop(request, None)
        if self._fleet.end_request(request, worker):
            self._handed[worker].pop(request, None)
            # The last output token has no KV values, because the model never processes it.
            if output.length > 1:
                kept = Segment(output.key, output.length - 1)
                self._tree.insert((*request.prompt, kept), worker)

    def balance(self, client: str) -> float | None:
        return self.order.credit.get(client)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self._handed[worker] = {}

    def on_worker_left(self, worker: int) -> None:
        del self._handed[worker]


def _needed(request: Request) -> int:
    """Return the memory in tokens that a request may need."""
    return request.input_tokens + request.max_new_tokens


def _is_open(room: Room | None) -> bool:
    return room is None or min(room) > 0


class CentralOrder(DLPM):
    """DLPM for a cluster-wide queue, based on the longest prefixes at workers with free memory.

    A client is first charged for the uncached tokens that the router estimates. When a request
    starts, its charge is corrected to the real number of uncached tokens.
    """

    name = "central-dlpm"

    def __init__(self, router: CentralRouter) -> None:
        super().__init__(router.params)
        self._router = router
        self._requests: list[Request] = []
        self._queue = ListView(self._requests, lambda request: self._matches[request])
        self._matches: dict[Request, int] = {}
        self._charged: dict[Request, int] = {}
        self.told = False  # whether the replicas report their output tokens

    def blocked_s(self) -> float:
        """Return how many seconds a replica waits for a central decision."""
        return self._router.workers * (MESSAGES_S + PAIR_S * len(self._requests))

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._queue.enter(request)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._router.look()
        if self._router.open:
            yield from super().select(view, now_s)

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> ListScan:
        router = self._router
        if router.open:
            prompts = {id(one.prompt): one.prompt for one in self._requests}
            found = {key: router.match(prompt) for key, prompt in prompts.items()}
            self._matches = {one: found[id(one.prompt)] for one in self._requests}
            self._queue.match_order()
        return _OpenScan(list(self._requests), view, router)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._queue.leave(request)
        self._charged[request] = tokens = self._router.extends[request]
        self.charging.admitted(request, tokens, recompute)

    def started(self, request: Request, extend_tokens: int) -> None:
        """Correct the charge for a request from the estimated to the computed tokens."""
        if request in self._charged:
            more = extend_tokens - self._charged[request]
            self._charged[request] = extend_tokens
            self.account.charge(request.client, self.prices.input_weight * more)

    def produced(self, client: str, tokens: int) -> None:
        """Charge output tokens when a replica has produced them."""
        if client in self.credits.of:
            self.charging.tokens(client, tokens)

    def on_tokens(self, client: str, tokens: int) -> None:
        if not self.told:
            self.charging.tokens(client, tokens)

    def on_read(self, request: Request, read: Read) -> None:
        self.started(request, read.input_tokens - read.cached_tokens)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        if self._charged.pop(request, None) is None:
            self._queue.leave(request)  # the request was withdrawn before the router sent it

    def service_bound(self) -> NoBound:
        return NoBound("central-dlpm bounds the sum over replicas, which no theorem covers")


class _OpenScan(ListScan):
    """A queue scan that ends when a worker is full, as prefix matches then exclude this worker.

    If all workers are full, the scan still yields a request, because Algorithm 1 of [DLPM] may
    grant quanta to the request's client. If the yielded request does not fit, the scan ends.
    """

    def __init__(self, order: list[Request], view: WaitingView, router: CentralRouter) -> None:
        super().__init__(order, view)
        self._router, self._open = router, router.open

    def __next__(self) -> Request:
        if self._router.routed:
            self._router.look()
        if self._router.open not in (0, self._open):
            raise StopIteration
        return super().__next__()
