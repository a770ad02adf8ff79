"""Execution of programs on real servers, at arrival times that do not depend on answers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from fairbench.config import ExperimentSpec
from fairbench.core import OUTPUT_PRICE, Prompt, Segment
from fairbench.errors import ProgramFailed
from fairbench.execute.tasks import DriveProgress
from fairbench.sim.distinct_prefixes import Answers, DistinctPrefixes
from fairbench.sim.program_runner import output_segment
from fairbench.workloads.plan import User, last_arrival_s, program_stream, users_of
from fairbench.workloads.programs.base import Job
from fairbench_load import records
from fairbench_load.driver.caller import Caller, ProgramCall
from fairbench_load.driver.connection import Pool, RunClock
from fairbench_load.driver.server_apis import AskChat, AskCompletions, AskGenerate, ServerApi
from fairbench_load.driver.target import DriverTarget
from fairbench_load.processes.environment import allow_many_connections

# ``_due_s`` is the time (s) at which the current branch of a program is due to send its next call.
_due_s: ContextVar[float] = ContextVar("due_s")


class LiveLLM:
    """The model (``core.LLM``) that one running program calls."""

    def __init__(
        self, program_id: int, client: str, arrival_s: float, caller: Caller, clock: RunClock
    ) -> None:
        self.requests = 0
        self._program_id = program_id
        self._client = client
        self._caller = caller
        self._clock = clock
        self._outputs: dict[str, bytes] = {}
        self._answers: Answers = {}
        _due_s.set(arrival_s)

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        self.requests += 1
        call = ProgramCall(
            self._program_id,
            self._client,
            depth,
            prompt,
            output_tokens,
            max_new_tokens,
            _due_s.get(),
            name,
            self._answers,
        )
        answer = await self._caller.send_call(call, self._outputs)
        _due_s.set(self._clock.now_s())
        output = output_segment(self._program_id, name, answer.output_tokens)
        self._outputs[output.key] = answer.rendered()
        return output

    async def sleep(self, seconds: float) -> None:
        wake_s = _due_s.get() + seconds
        _due_s.set(wake_s)
        await self._clock.sleep_until(wake_s)

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Wait for all branches of a program, then raise the first failure of a branch, if any."""
        results = await asyncio.gather(*branches, return_exceptions=True)
        _due_s.set(self._clock.now_s())
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise min(
                errors, key=lambda error: isinstance(error, ProgramFailed)
            )  # An error of fairbench itself is raised rather than a ProgramFailed.
        return results


class ProgramRunner:
    """A runner of programs, with counts of the programs that have started and ended."""

    def __init__(self, caller: Caller, clock: RunClock, journal: records.Journal) -> None:
        self.started = 0
        self.done = 0
        self._caller = caller
        self._clock = clock
        self._journal = journal

    async def run_program(self, program: Job, arrival_s: float) -> None:
        """Run one program, and record how it ended; a cancelled program counts as unfinished."""
        self.started += 1
        llm = LiveLLM(program.program_id, program.client, arrival_s, self._caller, self._clock)
        status = records.UNFINISHED
        try:
            await program.run(llm)
            status = records.FINISHED
        except ProgramFailed:
            status = records.REFUSED
        finally:
            self._record_end(program, arrival_s, llm.requests, status)
        self.done += 1

    def _record_end(self, program: Job, arrival_s: float, requests: int, status: str) -> None:
        demand = program.demand
        self._journal.program(
            records.ProgramRecord(
                program_id=program.program_id,
                client=program.client,
                arrival_s=arrival_s,
                finish_s=self._clock.now_s() if status == records.FINISHED else None,
                requests=requests,
                demand_requests=demand.requests,
                demand_input_tokens=demand.input_tokens,
                demand_output_tokens=demand.output_tokens,
                status=status,
            )
        )


_Room: TypeAlias = AbstractAsyncContextManager[None]

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class DriveResult:
    """The outcome of sending a run's load; ``complete`` is False after an interruption."""

    complete: bool
    end_s: float
    last_arrival_s: float


async def drive(
    spec: ExperimentSpec,
    target: DriverTarget,
    records_dir: Path,
    *,
    vocab: range,
    shard: records.Shard = records.WHOLE,
    starts_in_s: Callable[[], float] = lambda: 0.0,
    on_progress: Callable[[DriveProgress], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> DriveResult:
    """Run the programs of all clients, and append records to ``records_dir``.

    The programs and arrival times are the same as in the simulator. The run ends when all programs
    have ended, ``max_drain_s`` seconds after the last arrival, or when ``interrupted`` returns
    true. Requests in progress at the end of the run are cancelled and recorded as unfinished.

    Args:
        spec: The experiment.
        target: The server to which requests are sent.
        records_dir: The directory to which records are written.
        vocab: Token ids from which prompts are made, if the server's API takes token ids.
        shard: The clients whose programs this driver runs, if there are several drivers.
        starts_in_s: Function that is called when all data is loaded, and that returns the seconds
            until the run begins.
        on_progress: Function that is called repeatedly with the progress of the run.
        interrupted: Function that returns whether the run should end.
    """
    allow_many_connections()
    streams = _streams(spec, shard)
    pool = Pool(target.base_url, target.connect_timeout_s)
    with records.Journal(records_dir) as journal:
        clock = RunClock(target.time_scale, starts_in_s())
        # Each driver counts in steps of the number of drivers, so no two requests have the same id.
        ids = count(shard.number, shard.drivers)
        run = _Run(spec, target, vocab, pool, journal, clock, len(streams), ids)
        if target.api == "generate" and shard.drivers == 1:
            # With the other APIs, servers apply a chat template, so the driver does not know token
            # ids.
            run.caller.prefixes = DistinctPrefixes()
        try:
            complete = await run.until_over(streams, on_progress, interrupted)
        finally:
            await pool.close()
    return DriveResult(complete, run.clock.now_s(), run.last_arrival_s)


@dataclass(frozen=True, slots=True)
class _Stream:
    """The programs of one client with their arrival times.

    - ``room`` is a semaphore that limits how many programs of the client run at once.
    - ``users`` are closed-loop users, which start no new program after ``until_s`` seconds.
    - If ``recorded`` is True, programs with equal start times start in the order of the trace.
    """

    programs: Iterator[tuple[float, Job]]
    room: _Room
    users: Sequence[User] = ()
    until_s: float = 0.0
    recorded: bool = False


def _in_turn(stream: _Stream) -> Iterator[tuple[float, int, Job, _Room]]:
    """Yield a client's programs, each with its start time (s) and its number in the trace."""
    for arrival_s, program in stream.programs:
        yield arrival_s, getattr(program, "turn", None) or 0, program, stream.room


def _streams(spec: ExperimentSpec, shard: records.Shard) -> list[_Stream]:
    """Return the programs and arrival times of each client that this driver serves."""
    source = spec.source()
    return [
        _Stream(
            program_stream(plan, seed=spec.seed, source=source),
            nullcontext() if plan.in_flight is None else asyncio.Semaphore(plan.in_flight),
            recorded=plan.arrivals.timed,
        )
        if not (users := users_of(plan, seed=spec.seed, source=source))
        else _Stream(iter(()), nullcontext(), users, last_arrival_s((plan,), spec.seed))
        for plan in shard.clients_of(spec.client_plans())
    ]


class _Run:
    """A run in progress on real servers."""

    def __init__(
        self,
        spec: ExperimentSpec,
        target: DriverTarget,
        vocab: range,
        pool: Pool,
        journal: records.Journal,
        clock: RunClock,
        streams: int,
        ids: Iterator[int],
    ) -> None:
        self.clock = clock
        self.last_arrival_s = 0.0
        self._spec = spec
        self._journal = journal
        self._arrivals_open = streams
        self._service = {plan.client: 0 for plan in spec.client_plans()}
        if target.api == "generate":
            api: ServerApi = AskGenerate(vocab, target.extra_body)
        else:
            ask = AskChat if target.api == "chat" else AskCompletions
            api = ask(target.model, target.extra_body, target.max_tokens_field)
        self.caller = Caller(target, api, self.clock, pool, self._on_request, ids)
        self._programs = ProgramRunner(self.caller, self.clock, journal)

    async def until_over(
        self,
        streams: list[_Stream],
        on_progress: Callable[[DriveProgress], None] | None,
        interrupted: Callable[[], bool],
    ) -> bool:
        """Run the programs of all clients; return False if the run was interrupted."""
        work = asyncio.create_task(self._run_all(streams))
        try:
            while not work.done():
                if interrupted():
                    return False
                end_s = max(self.last_arrival_s, self._spec.duration_s or 0.0)
                late = self.clock.now_s() > end_s + self._spec.max_drain_s
                if late and not self._arrivals_open:
                    return True
                if on_progress is not None:
                    on_progress(self._progress())
                await asyncio.wait([work], timeout=POLL_S)
            work.result()
            return True
        finally:
            work.cancel()
            await asyncio.wait([work])

    async def _run_all(self, streams: list[_Stream]) -> None:
        """Run the programs of all clients, then raise the first error that is not ProgramFailed."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replay(group, [one for one in streams if one.recorded]))
                for stream in streams:
                    if not stream.recorded:
                        group.create_task(self._arrivals(group, stream))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _replay(self, group: asyncio.TaskGroup, streams: list[_Stream]) -> None:
        """Start the programs of all clients at the times and in the order of a trace."""
        await self.clock.sleep_until(0.0)
        merged = heapq.merge(*map(_in_turn, streams), key=itemgetter(0, 1))
        for arrival_s, _, program, room in merged:
            await self.clock.sleep_until(arrival_s)
            self.last_arrival_s = max(self.last_arrival_s, arrival_s)
            group.create_task(self._run_one(program, arrival_s, room))
        self._arrivals_open -= len(streams)

    async def _arrivals(self, group: asyncio.TaskGroup, stream: _Stream) -> None:
        """Start one client's programs at their arrival times."""
        # The first think time of a closed-loop user begins when the run begins.
        await self.clock.sleep_until(0.0)
        for arrival_s, program in stream.programs:
            await self.clock.sleep_until(arrival_s)
            self.last_arrival_s = max(self.last_arrival_s, arrival_s)
            group.create_task(self._run_one(program, arrival_s, stream.room))
        for user in stream.users:
            group.create_task(self._loop(user))
        await self.clock.sleep_until(stream.until_s)
        self._arrivals_open -= 1

    async def _loop(self, user: User) -> None:
        while following := user.next(self.clock.now_s()):
            await self.clock.sleep_until(following.at_s)
            self.last_arrival_s = max(self.last_arrival_s, following.at_s)
            await self._programs.run_program(following.program, following.at_s)

    async def _run_one(self, program: Job, arrival_s: float, room: _Room) -> None:
        waits = isinstance(room, asyncio.Semaphore) and room.locked()
        async with room:
            await self._programs.run_program(program, self.clock.now_s() if waits else arrival_s)

    def _on_request(self, record: records.RequestRecord) -> None:
        self._journal.request(record)
        if record.finish_s is not None:
            self._service[record.client] += (
                record.input_tokens + OUTPUT_PRICE * record.output_tokens
            )

    def _progress(self) -> DriveProgress:
        programs = self._programs
        return DriveProgress(
            now_s=self.clock.now_s(),
            end_s=self._spec.duration_s,
            programs_done=programs.done,
            programs_started=programs.started,
            service=dict(self._service),
        )
