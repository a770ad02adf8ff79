"""A simulated cluster and its clients, whose programs send requests to the workers."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fairbench.core import OUTPUT_PRICE, PS_PER_S, Demand, Prompt, Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import Replica
from fairbench.engine.logs import DECODE_COLUMNS, IntegerTable, RequestLog
from fairbench.engine.sequence import FINISHED, NEVER, REFUSED, UNFINISHED, Sequence
from fairbench.errors import ProgramFailed, RunFailed
from fairbench.metrics.belady import least_computed
from fairbench.schedulers.base import Router
from fairbench.sim.distinct_prefixes import Answers, DistinctPrefixes
from fairbench.sim.program_runner import Callback, SimLLM, output_segment, run
from fairbench.targets import NOT_DUE, Due, RequestCosts, alone
from fairbench.workloads.disguises import EndedRequest, Reaction
from fairbench.workloads.plan import ClientPlan, User
from fairbench.workloads.programs.base import Job

if TYPE_CHECKING:
    from fairbench.sim.ingress import Ingress, RouterIngresses


Start: TypeAlias = Callable[[Job, Callable[[], None]], None]
"""A function that starts a program; its second argument is called when the program ends."""


class InFlightLimit:
    """A limit on the number of a client's programs that run at a time.

    A program that arrives while the limit is reached waits. Programs start in order of arrival.
    """

    def __init__(self, most: int, start: Start) -> None:
        self._most = most
        self._start = start
        self._running = 0
        self._beginning = False
        self._waiting: deque[Job] = deque()

    def arrive(self, program: Job) -> None:
        """Start a program now, or when fewer programs run than the limit allows."""
        self._waiting.append(program)
        self._begin()

    def _begin(self) -> None:
        if self._beginning:
            # A refused program ends within the loop below; the running loop then starts the next
            # program.
            return
        self._beginning = True
        while self._waiting and self._running < self._most:
            self._go(self._waiting.popleft())
        self._beginning = False

    def _go(self, program: Job) -> None:
        self._running += 1
        self._start(program, self._ended)

    def _ended(self) -> None:
        self._running -= 1
        self._begin()


class Reacting(InFlightLimit):
    """A client that runs one program at a time until its ``reaction`` starts queued programs."""

    def __init__(self, reaction: Reaction, start: Start) -> None:
        super().__init__(1, start)
        self._reaction = reaction

    def react_to(self, ended: EndedRequest) -> None:
        """Let the client react to the end of one of its requests."""
        if self._reaction(ended):
            going, self._waiting = self._waiting, deque()
            for program in going:
                self._go(program)


class Deadlines:
    """The deadlines of requests, which follow from clients' latency targets.

    If a target is a multiple of the request's latency on an idle replica, the deadline assumes an
    output of ``max_new_tokens`` tokens. The deadlines in metrics use the true output length.
    """

    def __init__(self, plans: Iterable[ClientPlan], costs: RequestCosts | None) -> None:
        self._targets = {plan.client: plan.targets for plan in plans if plan.targets}
        self._costs = costs

    def due(self, client: str, arrival_s: float, input_tokens: int, max_new_tokens: int) -> Due:
        """Return the deadlines of a client's request that arrives at ``arrival_s``."""
        if client not in self._targets:
            return NOT_DUE
        targets = self._targets[client]
        lone = None
        if targets.of_alone:
            assert self._costs is not None, "multiples need a timing profile"
            lone = alone(self._costs, input_tokens, max_new_tokens)
        return targets.due(arrival_s, lone, max_new_tokens)


PROGRAM_COLUMNS = (
    "program_id", "client", "arrival_ps", "finish_ps", "requests", "demand_requests",
    "demand_input_tokens", "demand_output_tokens", "status",
)  # fmt: skip


@dataclass(slots=True)
class _Started:
    program_id: int
    client: str
    arrival_ps: int
    demand: Demand
    requests: int = 0
    answers: Answers = field(default_factory=dict)


class Cluster:
    """The simulated cluster: a router and its workers, which serve clients' programs.

    Args:
        clock: The clock of the simulation.
        router: The router, which chooses the worker of each request.
        workers: The workers by their numbers.
        clients: The names of the clients.
        ingress: Queue in front of the router, or None if requests are sent immediately.
        deadlines: Source of requests' deadlines, or None if requests have no deadlines.
        demotes: Whether the request log has a column ``demoted``.
        disaggregated: Whether the request log has the columns of disaggregated clusters.
    """

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
        if ingress is None and router.holds:
            from fairbench.sim.ingress import Ingress

            ingress = Ingress.of_router(clock, router, workers)
        swapped = any(worker.scheduler.swaps for worker in workers)
        more = ("routed_ps",) * (ingress is not None) + ("swapped_tokens",) * swapped
        more += ("demoted",) * demotes + DECODE_COLUMNS * disaggregated
        self.request_log = RequestLog(clients, more)
        self.program_log = IntegerTable(PROGRAM_COLUMNS)
        self.running: dict[int, _Started] = {}
        self._prefixes = DistinctPrefixes()
        self.arrivals_open = 0
        self.last_arrival_ps = 0
        # ``_limit_ps`` is the time (ps) at which the run ends at the latest, or None until all
        # programs have arrived.
        self._limit_ps: int | None = None
        # ``service`` holds each client's input + 2 x output tokens of finished requests.
        self.service = array("q", [0] * len(clients))
        self._requests = 0
        self._reacting: dict[str, Reacting] = {}
        self._deadlines = deadlines
        self._times_requests = router.wants_gpu_time
        for worker in workers:
            worker.batch.times_requests = self._times_requests
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
        """Start each program of a client at its time of arrival.

        Args:
            number: The client's position in the list of clients, from 0.
            programs: Pairs of a time of arrival, in seconds, and a program, in order of time.
            in_flight: Maximum number of programs that run at a time, or None.
            reaction: Function that reacts to the end of each request of the client, or None. If
                ``reaction`` is given, ``in_flight`` is ignored.
        """
        self.arrivals_open += 1
        start: Callable[[Job], None] = self._start
        if reaction is not None:
            self._reacting[self.clients[number]] = reacting = Reacting(reaction, self._start)
            start = reacting.arrive
        elif in_flight is not None:
            start = InFlightLimit(in_flight, self._start).arrive
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

        # A user's own program may have no attribute ``turn``.
        turn = getattr(program, "turn", None)
        turn = number if turn is None else turn
        self.clock.at(round(arrival_s * PS_PER_S), ARRIVE, turn, arrive)

    def add_users(self, number: int, users: Iterable[User], until_s: float) -> None:
        """Let a client's users start programs until ``until_s`` (in seconds)."""
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

        # Rounding to picoseconds may put the start of the user's next program before the current
        # time.
        at_ps = max(self.clock.now_ps, round(following.at_s * PS_PER_S))
        self.clock.at(at_ps, ARRIVE, number, arrive)

    # Programs and requests

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
            # Positional arguments are faster than keyword arguments.
            request = Request(
                self._requests, program.client, program.program_id, depth, prompt, tokens, max_new,
                now_s, due.end_s, 0, calls_left, due.first_token_s, False, due.token_every_s,
            )  # fmt: skip
            self._requests += 1
            produces = output if output < max_new else max_new
            segment = output_segment(program.program_id, name, produces)
            sequence = Sequence(
                request, segment, now_ps, partial(self._finished, done, started.answers)
            )
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

    def _finished(self, done: Callback, answers: Answers, sequence: Sequence) -> None:
        """Record the end of a program's request, and resume the program with ``done``."""
        if self.ingress is not None:
            self.ingress.finished(sequence)
        request, refused = sequence.request, sequence.status == REFUSED
        if not refused:
            new = self._prefixes.add(request.prompt, sequence.output, answers)
            sequence.compulsory_tokens = new
        self.request_log.record(sequence)
        if not refused and request.client in self._reacting:
            reacting = self._reacting[request.client]
            ttft_s = (sequence.first_token_ps - sequence.arrival_ps) / PS_PER_S
            reacting.react_to(EndedRequest(ttft_s, request.input_tokens, sequence.cached_tokens))
        output = Segment(sequence.output.key, 0) if refused else sequence.output
        if sequence.first_token_ps != NEVER:
            first_s = sequence.first_token_ps / PS_PER_S
            self.router.on_first_token(request, sequence.worker, first_s)
        # A request without a worker was refused before it reached the router.
        if sequence.worker >= 0:
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
        self.service[index] += request.input_tokens + OUTPUT_PRICE * sequence.produced
        done(output, None)

    # Simulated time

    def advance(self, most: int, limit_ps: Callable[[], int]) -> bool:
        """Run up to ``most`` events.

        Return False if all programs have ended, or if the next event is later than the end
        ``limit_ps()`` of the run.
        """
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

    # Run end

    def settle(self) -> None:
        """Record the unfinished requests and programs at the end of the run."""
        for worker in self.workers:
            worker.settle()
            for sequence in worker.in_flight():
                if sequence in worker.batch.sequences:
                    sequence.produced = worker.batch.produced(sequence)
                self.request_log.record(sequence)
        if self.ingress is not None:
            for sequence in self.ingress.sequences():
                self.request_log.record(sequence)
        for started in self.running.values():
            self._record(started, UNFINISHED, NEVER)

    def least_computed(self, capacity: int) -> int | None:
        """Return the least number of prompt tokens to compute with a cache of ``capacity`` tokens.

        Prompts use the cache in the order of the run, and tokens are evicted by Belady's optimal
        rule. Return None if the cache can hold all distinct prefixes.
        """
        if self._prefixes.tokens <= capacity:
            return None
        log = self.request_log
        served = log.column("status") == FINISHED
        times = (log.column(name)[served] for name in ("admitted_ps", "finish_ps"))
        return least_computed(self._prefixes.uses(*times), capacity)

    def abandon(self) -> None:
        """Delete the cluster's state after the run, to free memory for the metrics."""
        for worker in self.workers:
            worker.cache.abandon()
        self.workers.clear()
        self.running.clear()
        self.clock.drop_events()
