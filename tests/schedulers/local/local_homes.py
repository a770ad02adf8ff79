"""Three hosts of a local scheduler over one toy world with one toy gate.

All three must admit the same requests. ``ListHome`` uses a plain list, ``EngineHome`` runs the
plugin in a fake of SGLang's loop, and ``SimHome`` uses the simulator's incremental queue.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from types import SimpleNamespace
from typing import Protocol

from fairbench.core import Request, Segment
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.schedulers.base import LocalScheduler, WaitingView
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.load_cap import LoadCap
from fairbench.schedulers.views import ListView
from fairbench_engines.scheduler_host import Tracked
from fairbench_engines.sglang import scheduler_host as plugin_home
from fairbench_engines.sglang.views import ArmedQueue
from fairbench_load.client_metrics import Ledger
from tests.schedulers.local.local_requests import Trie


class Result(Enum):
    """The results of SGLang's ``add_one_req``."""

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
        """Return how many of the tokens that a prefill must cover are cached."""
        sequence = self.sequences[request]
        return self.trie.matched(sequence.prompt, sequence.total)

    def start(self, request: Request) -> None:
        """Compute and store the prompt, evicting other KV to make room."""
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
    """A simplified PrefillAdder of SGLang, which limits tokens and requests in a pass."""

    def __init__(self, world: World, tokens: int, requests: int) -> None:
        self._world = world
        self._tokens, self._requests = tokens, requests
        self.can_run_list: list[Request] = []

    def extend_tokens(self, request: Request) -> int:
        return self._world.sequences[request].total - self._world.matched(request)

    def add_one_req(self, request: Request) -> Result:
        """Add a request. The caller goes on after CONTINUE; NO_TOKEN may follow an admission."""
        need = self.extend_tokens(request) + request.max_new_tokens
        if need > self._tokens:
            return Result.NO_TOKEN
        self._tokens -= need
        self._requests -= 1
        self.can_run_list.append(request)
        if not self._tokens:
            return Result.NO_TOKEN
        return Result.CONTINUE if self._requests else Result.OTHER


class Home(Protocol):
    """A host of a scheduler: its arrivals and its admission passes."""

    def arrive(self, request: Request) -> None: ...

    def retract(self, request: Request) -> None: ...

    def run_pass(self, gate: Gate) -> None: ...


class _Driven:
    """A host that drives ``select`` itself. ``enter`` and ``leave`` are those of its queue."""

    def __init__(
        self,
        world: World,
        scheduler: LocalScheduler,
        view: WaitingView,
        enter: Callable[[Request], None],
        leave: Callable[[Request], None],
    ) -> None:
        self.world = world
        self.scheduler = scheduler
        self.view = view
        self._enter = enter
        self._leave = leave

    def arrive(self, request: Request) -> None:
        self.scheduler.on_arrival(request, self.view, 0.0)
        self._enter(request)

    def retract(self, request: Request) -> None:
        self.scheduler.on_retract(request, self.view, 0.0)
        self._enter(request)

    def run_pass(self, gate: Gate) -> None:
        def try_admit(request: Request) -> Tried:
            before = len(gate.can_run_list)
            result = gate.add_one_req(request)
            if len(gate.can_run_list) == before:
                return Tried.NO_ROOM
            self._leave(request)
            recompute = request in self.world.readmitted
            self.scheduler.on_admitted(request, gate.extend_tokens(request), recompute)
            return Tried.ADMITTED if result is Result.CONTINUE else Tried.LAST

        drive(self.scheduler.select(self.view, 0.0), try_admit)


class ListHome(_Driven):
    """A host with the naive list view."""

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        view = ListView([], world.matched, lambda r: world.sequences[r].prompt)
        super().__init__(world, scheduler, view, view.enter, view.leave)


class SimHome(_Driven):
    """A host with the simulator's queue."""

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        view = WaitingQueue(world.cache, scheduler.cache_aware)
        super().__init__(
            world, scheduler, view, lambda r: view.enter(world.sequences[r]), view.admit
        )

    def run_pass(self, gate: Gate) -> None:
        super().run_pass(gate)
        self.view.end_pass()


class FakeReq:
    """A request as SGLang has it."""

    def __init__(self, request: Request) -> None:
        self.request = request


class PluginHome(plugin_home.SGLangHome):
    """The plugin's own host, except that the scheduler gets the requests of the other hosts."""

    def _track(self, req: FakeReq, now_s: float) -> Tracked:
        return Tracked(req.request, req, req.request.prompt)


class EngineHome:
    """The plugin in a fake of SGLang's ``get_new_batch_prefill``, which knows nothing of fairbench.

    tests/sim/test_sim_plugin_differential.py uses the real one. A ListView replaces its sorting.
    """

    def __init__(self, world: World, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self._sorted = ListView([], world.matched, lambda r: world.sequences[r].prompt)
        config = SimpleNamespace(
            build=lambda: scheduler, weights={}, has_cap=False, load_cap=lambda: LoadCap(None)
        )
        self._home = PluginHome(config, Ledger(), self._sort, self._match)
        self.view = self._home.view
        self._reqs: dict[Request, FakeReq] = {}

    def _sort(self, refresh: bool) -> list[FakeReq]:
        return [self._reqs[request] for request in self._sorted.match_order(refresh=refresh)]

    def _match(self, req: FakeReq) -> int:
        return self._sorted.matched_tokens(req.request)

    def arrive(self, request: Request) -> None:
        req = self._reqs[request] = FakeReq(request)
        assert self._home.accepts(req, 0.0)
        self._home.queued(req, retracted=False, now_s=0.0)
        self._sorted.enter(request)

    def retract(self, request: Request) -> None:
        self._home.queued(self._reqs[request], retracted=True, now_s=0.0)
        self._sorted.enter(request)

    def run_pass(self, gate: Gate) -> None:
        queue = ArmedQueue(self._sort(refresh=False))
        self._home.arm(queue, 0.0)
        for req in queue:
            before = len(gate.can_run_list)
            result = gate.add_one_req(req.request)
            if len(gate.can_run_list) > before:
                self._home.admitted(req, gate.extend_tokens(req.request))
                self._sorted.leave(req.request)
            elif result is Result.NO_TOKEN and self._home.no_room(req) is plugin_home.Next.ANOTHER:
                continue
            if result is not Result.CONTINUE:
                break
