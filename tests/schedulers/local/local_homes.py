"""The three homes of a local scheduler, over one toy world with one toy gate.

``ListHome`` is the plain reading, ``EngineHome`` a fake of SGLang's scheduling loop, and
``SimHome`` the simulator's incremental queue. What each admits has to be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from local_requests import Trie

from fairbench.core import Request, Segment
from fairbench.schedulers.base import LocalScheduler, WaitingView
from fairbench.schedulers.list_view import ListView
from fairbench.sim.kv_cache import KVCache
from fairbench.sim.sequence import Sequence
from fairbench.sim.waiting import WaitingQueue


class Result(Enum):
    """What SGLang's ``add_one_req`` answers."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    OTHER = auto()


class World:
    """Requests, the KV cache, and a token-by-token copy of its content."""

    def __init__(self, capacity: int) -> None:
        self.trie = Trie()
        self.cache = KVCache(capacity, on_evict=self.trie.evict)
        self.sequences: dict[Request, Sequence] = {}
        self.running: list[Request] = []
        self.readmitted: set[Request] = set()

    def arrive(self, request: Request) -> None:
        output = Segment(f"out{request.request_id}", request.max_new_tokens)
        self.sequences[request] = Sequence(request, output, 0, lambda _: None)

    def matched(self, request: Request) -> int:
        """Cached tokens of what a prefill has to cover."""
        sequence = self.sequences[request]
        return self.trie.matched(sequence.prompt, sequence.total)

    def start(self, request: Request) -> None:
        """Compute and store the prompt, evicting what is in the way."""
        sequence = self.sequences[request]
        self.running.append(request)
        self.store(sequence.prompt, sequence.total)

    def store(self, prompt: tuple[Segment, ...], total: int) -> None:
        cache = self.cache
        node, place = cache.match(prompt, total)
        cache.lock(node)
        cache.allocate(total - node.depth)
        _, cached = cache.insert(node, prompt, place, total)
        cache.release(cached)
        cache.unlock(node)
        self.trie.insert(prompt)


class Gate:
    """Room for so many tokens and requests in one pass: SGLang's PrefillAdder in small."""

    def __init__(self, world: World, tokens: int, requests: int) -> None:
        self._world = world
        self._tokens, self._requests = tokens, requests
        self.can_run_list: list[Request] = []

    def extend_tokens(self, request: Request) -> int:
        return self._world.sequences[request].total - self._world.matched(request)

    def add_one_req(self, request: Request) -> Result:
        """Only CONTINUE lets the caller go on, and NO_TOKEN may follow an admission."""
        need = self.extend_tokens(request) + request.max_new_tokens
        if need > self._tokens:
            return Result.NO_TOKEN
        self._tokens -= need
        self._requests -= 1
        self.can_run_list.append(request)
        if not self._tokens:
            return Result.NO_TOKEN
        return Result.CONTINUE if self._requests else Result.OTHER


class Home:
    """A scheduler at home somewhere: how requests come, and how a pass of admissions goes."""

    view: WaitingView

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        self.world = world
        self.scheduler = scheduler

    def enter(self, request: Request) -> None:
        raise NotImplementedError

    def run_pass(self, gate: Gate) -> None:
        raise NotImplementedError

    def arrive(self, request: Request) -> None:
        self.scheduler.on_arrival(request, self.view)
        self.enter(request)

    def retract(self, request: Request) -> None:
        self.scheduler.on_retract(request, self.view)
        self.enter(request)

    def book(self, request: Request, gate: Gate) -> None:
        recompute = request in self.world.readmitted
        self.scheduler.on_admitted(request, gate.extend_tokens(request), recompute)


class _Driven(Home):
    """A home that drives ``select`` itself."""

    def leave(self, request: Request) -> None:
        raise NotImplementedError

    def run_pass(self, gate: Gate) -> None:
        selection = self.scheduler.select(self.view)
        request = next(selection, None)
        while request is not None:
            before = len(gate.can_run_list)
            result = gate.add_one_req(request)
            if admitted := len(gate.can_run_list) > before:
                self.leave(request)
                self.book(request, gate)
                if result is not Result.CONTINUE:
                    break
            try:
                request = selection.send(admitted)
            except StopIteration:
                break
        selection.close()


class ListHome(_Driven):
    """The naive list view."""

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        super().__init__(world, scheduler)
        self.view = ListView([], world.matched, lambda r: world.sequences[r].prompt)

    def enter(self, request: Request) -> None:
        self.view.enter(request)

    def leave(self, request: Request) -> None:
        self.view.leave(request)


class SimHome(_Driven):
    """The simulator's queue."""

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        super().__init__(world, scheduler)
        self.view = WaitingQueue(world.cache, scheduler.cache_aware)

    def enter(self, request: Request) -> None:
        self.view.enter(self.world.sequences[request])

    def leave(self, request: Request) -> None:
        self.view.admit(request)

    def run_pass(self, gate: Gate) -> None:
        super().run_pass(gate)
        self.view.end_pass()


class ArmedList(list):
    """A waiting queue that, once armed, iterates in the order a scheduler selects."""

    def __init__(self) -> None:
        super().__init__()
        self._armed: Iterator[Request] | None = None

    def arm(self, order: Iterator[Request]) -> None:
        self._armed = order

    def __iter__(self) -> Iterator[Request]:
        order, self._armed = self._armed, None
        return super().__iter__() if order is None else order


class EngineHome(Home):
    """A fake of SGLang's ``get_new_batch_prefill``: it knows nothing of fairbench.

    The seam is what a plugin can hook: ``calc_priority`` and the queue's own iteration. Whether a
    candidate was admitted is read from ``can_run_list``, never from the return value.
    """

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        super().__init__(world, scheduler)
        self.waiting_queue = ArmedList()
        self.view = ListView(self.waiting_queue, world.matched, lambda r: world.sequences[r].prompt)

    def enter(self, request: Request) -> None:
        self.view.enter(request)

    def calc_priority(self, gate: Gate) -> None:
        self.waiting_queue.arm(self._drive(gate))

    def run_pass(self, gate: Gate) -> None:
        self.calc_priority(gate)
        for request in self.waiting_queue:
            if gate.add_one_req(request) is not Result.CONTINUE:
                break

    def _drive(self, gate: Gate) -> Iterator[Request]:
        selection = self.scheduler.select(self.view)
        try:
            request: Request | None = next(selection, None)
            while request is not None:
                try:
                    yield request
                finally:  # also when the loop broke off right after this admission
                    admitted = request in gate.can_run_list
                    if admitted:
                        self.view.leave(request)
                        self.book(request, gate)
                try:
                    request = selection.send(admitted)
                except StopIteration:
                    return
        finally:
            selection.close()
