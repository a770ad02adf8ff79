"""Real simulated workers that are driven request by request, and a trace from their logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from random import Random

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import NEVER, Sequence
from fairbench.engine.sglang import SGLangReplica
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import EngineLimits
from fairbench.hardware.engines import ClusterParams
from fairbench.schedulers.base import LocalScheduler, Router
from fairbench.sim.front import eviction_reports
from tests.schedulers.local.local_trace import Trace

PROFILE = "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"
LIMITS = EngineLimits(
    pool_tokens=1500,
    chunked_prefill_size=256,
    max_prefill_tokens=512,
    max_running_requests=64,
    full_reservation=True,
    step_by_step=True,
)


class Fleet:
    """Workers behind a router: ``submit`` requests, ``step`` through events, read the trace."""

    def __init__(
        self,
        make: Callable[[], LocalScheduler],
        clients: str,
        router: Router | None = None,
        workers: int = 1,
        **limits,
    ) -> None:
        self.clock = Clock()
        self.clients = clients
        self.router = router
        self.log = ServiceLog(list(clients))
        self.limits = replace(LIMITS, **limits)
        profile = load_profile(PROFILE)
        self.workers = [
            SGLangReplica(
                WorkerParts(i, self.clock, make(), profile, self.log), self.limits, self._cache(i)
            )
            for i in range(workers)
        ]
        self.sequences: list[Sequence] = []
        self.on_done: Callable[[Request], None] = lambda _: None

    def _cache(self, worker: int) -> KVCache:
        cache = KVCache(self.limits.pool_tokens)
        if self.router is not None and self.router.wants_evictions:
            cache.on_evict = eviction_reports(
                self.clock, self.router, worker, ClusterParams(), Random(0)
            )
        return cache

    def submit(self, request: Request, output: int | None = None) -> int:
        """Let a request arrive now. Return its worker."""
        segment = Segment(f"out{request.request_id}", output or request.max_new_tokens)
        sequence = Sequence(request, segment, self.clock.now_ps, self._done)
        self.sequences.append(sequence)
        worker = 0 if self.router is None else self.router.route(request, self._now_s)
        self.workers[worker].submit(sequence)
        return worker

    def _done(self, sequence: Sequence) -> None:
        if self.router is not None:
            output = sequence.output._replace(length=sequence.produced)
            self.router.on_finish(sequence.request, sequence.worker, output, self._now_s)
        self.on_done(sequence.request)

    @property
    def _now_s(self) -> float:
        return self.clock.now_ps / PS_PER_S

    def service_so_far(self, client: str) -> int:
        """Return computed service from the engine's records. Admissions count when decided."""
        total = 0
        for s in self.sequences:
            if s.request.client == client and s.admitted_ps != NEVER:
                batch = self.workers[s.worker].batch
                produced = batch.produced(s) if s in batch.sequences else s.produced
                total += s.extend_tokens + 2 * produced
        return total

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        self.clock.at(round(time_s * PS_PER_S), ARRIVE, 0, action)

    def run(self, events: int, look: Callable[[], None] = lambda: None) -> None:
        """Run up to ``events`` events, and call ``look`` after each."""
        for _ in range(events):
            if self.clock.next_ps() is None:
                break
            self.clock.step()
            look()

    def trace(self, *, everywhere: bool = True) -> Trace:
        """Return the events in the logs, up to the point that every worker's log reaches.

        An admission counts when it is decided. ``everywhere`` is that of ``Trace``.
        """
        for worker in self.workers:
            worker.settle()
        ends = dict(
            zip(self.log.column("worker").tolist(), self.log.column("end_ps").tolist(), strict=True)
        )
        instants: dict[tuple[int, int, int], dict[str, Counter[str]]] = {}
        for time, order, worker, what in chain(self._requests(), self._service()):
            if time < min(ends.values()):
                instant = instants.setdefault((time, order, worker), {})
                for name, (client, amount) in what.items():
                    instant.setdefault(name, Counter())[client] += amount
        trace = Trace(self.clients, len(self.workers), everywhere=everywhere)
        for time, order, worker in sorted(instants):
            trace.add(worker, **instants[time, order, worker])
        return trace

    def _requests(self):
        """Order the events of an instant: tokens first, then arrivals, then admissions."""
        for s in self.sequences:
            client, cost = s.request.client, s.request.input_tokens + 2 * s.output.length
            yield s.arrival_ps, 1, s.worker, {"arrived": (client, 1), "asked": (client, cost)}
            if s.admitted_ps != NEVER:
                yield s.admitted_ps, 2, s.worker, {"admitted": (client, 1)}
            if s.finish_ps != NEVER:
                yield s.finish_ps, 0, s.worker, {"finished": (client, 1)}

    def _service(self):
        columns = {name: self.log.column(name).tolist() for name in self.log.names}
        for row in range(len(self.log)):
            at = {name: column[row] for name, column in columns.items()}
            worker, client = at["worker"], self.clients[at["client"]]
            if charged := at["extend_charged_tokens"]:
                yield at["start_ps"], 2, worker, {"service": (client, charged)}
            steps, growth = at["steps"], at["step_growth_ps"]
            span = at["end_ps"] - at["start_ps"] - growth * (steps * (steps - 1) // 2)
            time, length = at["start_ps"], span // steps
            for step in range(steps):
                time += length + growth * step
                if tokens := at["output_tokens"] // steps:
                    yield time, 0, worker, {"service": (client, 2 * tokens)}
            assert time == at["end_ps"]
