"""Programs, router and workers on one clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fairbench.core import PS_PER_S, Demand, Prompt, Request, Segment, prompt_tokens
from fairbench.errors import ProgramFailed, RunFailed
from fairbench.schedulers.base import Router
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.engine.contract import Replica
from fairbench.sim.in_flight import Deadlines, InFlight, Reacting
from fairbench.sim.program_runner import Callback, SimLLM, output_segment, run
from fairbench.sim.records.columns import Columns
from fairbench.sim.records.service_log import DECODE_COLUMNS, RequestLog
from fairbench.sim.sequence import FINISHED, NEVER, REFUSED, UNFINISHED, Sequence
from fairbench.targets import NOT_DUE
from fairbench.workloads.plan import User
from fairbench.workloads.programs.base import Job
from fairbench.workloads.reactions import Ended, Reaction

if TYPE_CHECKING:
    from fairbench.sim.ingress import Ingress
    from fairbench.sim.routers.ingresses import RouterIngresses

PROGRAM_COLUMNS = (
    "program_id",
    "client",
    "arrival_ps",
    "finish_ps",
    "requests",
    "demand_requests",
    "demand_input_tokens",
    "demand_output_tokens",
    "status",
)


@dataclass(slots=True)
class _Started:
    """A program in progress."""

    program_id: int
    client: str
    arrival_ps: int
    demand: Demand
    requests: int = 0


class Cluster:
    """Runs client streams of ``(arrival_s, program)`` on workers behind a router."""

    def __init__(
        self,
        clock: Clock,
        router: Router,
        workers: list[Replica],
        clients: list[str],
        ingress: Ingress | RouterIngresses | None = None,
        deadlines: Deadlines | None = None,
        *,
        demotes: bool = False,
        disaggregated: bool = False,
    ) -> None:
        self.clock = clock
        self.router = router
        self.workers = workers
        self.clients = clients
        swapped = any(worker.scheduler.swaps for worker in workers)
        more = ("routed_ps",) * (ingress is not None) + ("swapped_tokens",) * swapped
        more += ("demoted",) * demotes + DECODE_COLUMNS * disaggregated
        self.request_log = RequestLog(clients, more)
        self.program_log = Columns(PROGRAM_COLUMNS)
        self.running: dict[int, _Started] = {}
        self.arrivals_open = 0
        self.last_arrival_ps = 0
        self._limit_ps: int | None = None  # known after the last program has arrived
        self.service = array("q", [0] * len(clients))  # input + 2 output of finished requests
        self._requests = 0  # number of programs started so far
        self._reacting: dict[str, Reacting] = {}
        self._deadlines = deadlines
        if ingress is None and router.holds:
            from fairbench.sim.ingress import Ingress

            ingress = Ingress.of_router(clock, router, workers)
        self._times_requests = router.wants_gpu_time
        for worker in workers:
            worker.batch.times_requests = self._times_requests
        # the queue before the router; None: each request is sent immediately
        self.ingress = ingress

    @property
    def now_s(self) -> float:
        return self.clock.now_ps / PS_PER_S

    def add_client(
        self,
        number: int,
        programs: Iterator[tuple[float, Job]],
        in_flight: int | None = None,
        reaction: Reaction | None = None,
    ) -> None:
        """Start a client's stream, with at most ``in_flight`` programs or as ``reaction`` says."""
        self.arrivals_open += 1
        start: Callable[[Job], None] = self._start
        if reaction is not None:
            self._reacting[self.clients[number]] = reacting = Reacting(reaction, self._start)
            start = reacting.arrive
        elif in_flight is not None:
            start = InFlight(in_flight, self._start).arrive
        self._await_next(number, programs, start)

    def _await_next(
        self, number: int, programs: Iterator[tuple[float, Job]], start: Callable[[Job], None]
    ) -> None:
        following = next(programs, None)
        if following is None:
            self.arrivals_open -= 1
            return
        arrival_s, program = following

        def arrive() -> None:
            self.last_arrival_ps = self.clock.now_ps
            start(program)
            self._await_next(number, programs, start)

        turn = getattr(program, "turn", None)  # a user's own kind of job may lack a turn
        turn = number if turn is None else turn
        self.clock.at(round(arrival_s * PS_PER_S), ARRIVE, turn, arrive)

    def add_users(self, number: int, users: Iterable[User], until_s: float) -> None:
        """Start one client's users, who start no program from ``until_s`` on."""
        self.arrivals_open += 1
        self.clock.at(round(until_s * PS_PER_S), ARRIVE, number, self._close)
        for user in users:
            self._await_user(number, user)

    def _close(self) -> None:
        self.arrivals_open -= 1

    def _await_user(self, number: int, user: User) -> None:
        following = user.next(self.now_s)
        if following is None:
            return

        def arrive() -> None:
            self.last_arrival_ps = self.clock.now_ps
            self._start(following.program, partial(self._await_user, number, user))

        # After hours, a float of seconds is no longer exact to the picosecond.
        at_ps = max(self.clock.now_ps, round(following.at_s * PS_PER_S))
        self.clock.at(at_ps, ARRIVE, number, arrive)

    # Programs.

    def _start(self, program: Job, on_end: Callable[[], None] | None = None) -> None:
        started = _Started(program.program_id, program.client, self.clock.now_ps, program.demand)
        self.running[program.program_id] = started

        def submit(
            prompt: Prompt, name: str, output: int, max_new: int, depth: int, done: Callback
        ) -> None:
            started.requests += 1
            tokens, now_ps = prompt_tokens(prompt), self.clock.now_ps
            now_s = now_ps / PS_PER_S
            due = NOT_DUE
            if self._deadlines is not None:
                due = self._deadlines.due(program.client, now_s, tokens, max_new)
            calls_left = started.demand.requests - started.requests
            # all by position, because names would create a dictionary for each request
            request = Request(
                self._requests, program.client, program.program_id, depth, prompt, tokens, max_new,
                now_s, due.end_s, 0, calls_left, due.first_token_s, False, due.token_every_s,
            )  # fmt: skip
            self._requests += 1
            produces = output if output < max_new else max_new
            segment = output_segment(program.program_id, name, produces)
            sequence = Sequence(request, segment, now_ps, partial(self._finished, done))
            if self.ingress is not None:
                self.ingress.enter(sequence)
                return
            worker = self.router.route(request, now_s)
            if worker is None or not 0 <= worker < len(self.workers):
                raise RunFailed(f"router {self.router.name}: there is no worker {worker}")
            self.workers[worker].submit(sequence)

        def ended(_: Any, error: ProgramFailed | None) -> None:
            del self.running[started.program_id]
            self._record(started, REFUSED if error else FINISHED, self.clock.now_ps)
            if on_end is not None:
                on_end()

        run(program.run(SimLLM(self.clock, submit)), ended)

    def _record(self, started: _Started, status: int, finish_ps: int) -> None:
        demand = started.demand
        self.program_log.append(
            started.program_id,
            self.request_log.index[started.client],
            started.arrival_ps,
            finish_ps if status == FINISHED else NEVER,
            started.requests,
            demand.requests,
            demand.input_tokens,
            demand.output_tokens,
            status,
        )

    def _finished(self, done: Callback, sequence: Sequence) -> None:
        """Record that a program's request has ended; ``done`` resumes the program."""
        if self.ingress is not None:
            self.ingress.finished(sequence)
        request, refused = sequence.request, sequence.status == REFUSED
        self.request_log.record(sequence)
        if not refused and request.client in self._reacting:
            reacting = self._reacting[request.client]
            ttft_s = (sequence.first_token_ps - sequence.arrival_ps) / PS_PER_S
            reacting.heard(Ended(ttft_s, request.input_tokens, sequence.cached_tokens))
        output = Segment(sequence.output.key, 0) if refused else sequence.output
        if sequence.first_token_ps != NEVER:
            first_s = sequence.first_token_ps / PS_PER_S
            self.router.on_first_token(request, sequence.worker, first_s)
        if sequence.worker >= 0:  # no router knows requests that were refused earlier
            if self._times_requests:
                self.router.on_gpu_time(request, sequence.worker, sequence.gpu_ps / PS_PER_S)
            now_s = self.clock.now_ps / PS_PER_S
            self.router.on_finish(request, sequence.worker, output, now_s)
        if refused:
            done(
                None,
                ProgramFailed(
                    f"request {request.request_id} was refused, because it can never fit the KV "
                    "pool"
                ),
            )
            return
        index = self.request_log.index[request.client]
        self.service[index] += request.input_tokens + 2 * sequence.produced
        done(output, None)

    # The clock.

    def advance(self, most: int, limit_ps: Callable[[], int]) -> bool:
        """Run at most ``most`` events; return False if all programs have ended, or at the limit."""
        clock, events = self.clock, self.clock.events
        for _ in range(most):
            if not events:
                return False
            if not self.arrivals_open:
                if not self.running:
                    return False
                if self._limit_ps is None:
                    self._limit_ps = limit_ps()
                if events[0][0] > self._limit_ps:
                    clock.stop_at(self._limit_ps)
                    return False
            clock.step()
        return True

    # The end.

    def settle(self) -> None:
        """Record unfinished requests. Nothing may be simulated afterwards."""
        for worker in self.workers:
            worker.settle()
            for sequence in worker.in_flight():
                if sequence in worker.batch.sequences:
                    sequence.produced = worker.batch.produced(sequence)
                self.request_log.record(sequence)
        if self.ingress is not None:
            for sequence in self.ingress.held():
                self.request_log.record(sequence)
        for started in self.running.values():
            self._record(started, UNFINISHED, NEVER)

    def abandon(self) -> None:
        """Drop settled state, to free its memory for the metrics."""
        for worker in self.workers:
            worker.cache.abandon()
        self.workers.clear()
        self.running.clear()
        self.clock.clear()
