"""Drives an experiment's clients against real servers; arrivals do not wait for answers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from fairbench.config import ExperimentSpec
from fairbench.live.driver.caller import Caller
from fairbench.live.driver.clock import RunClock
from fairbench.live.driver.connection import Pool
from fairbench.live.driver.programs import ProgramRunner
from fairbench.live.driver.server_apis import AskChat, AskCompletions, AskGenerate, ServerApi
from fairbench.live.driver.shards import WHOLE, Shard
from fairbench.live.driver.target import Target
from fairbench.live.records import Journal, RequestRecord
from fairbench.live.requirements import allow_many_connections
from fairbench.workloads.plan import User, last_arrival_s, program_stream, users_of
from fairbench.workloads.programs.base import Job

_Room: TypeAlias = AbstractAsyncContextManager[None]

POLL_S = 0.1  # wall seconds between looks at the limit and at ``interrupted``


@dataclass(frozen=True, slots=True)
class DriveProgress:
    """The progress of a run, in seconds of the run.

    ``service`` is each client's weighted tokens (input + 2 x output) of finished requests.
    """

    now_s: float
    end_s: float | None
    programs_done: int
    programs_started: int
    service: dict[str, int]


@dataclass(frozen=True, slots=True)
class DriveResult:
    """The end of a run: ``complete`` is False if it was interrupted."""

    complete: bool
    end_s: float
    last_arrival_s: float


async def drive(
    spec: ExperimentSpec,
    target: Target,
    records_dir: Path,
    *,
    vocab: range,
    shard: Shard = WHOLE,
    starts_in_s: Callable[[], float] = lambda: 0.0,
    on_progress: Callable[[DriveProgress], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> DriveResult:
    """Run every client's programs, and append records to ``records_dir`` when they end.

    The programs and their arrivals are those of the simulator. The run ends when all programs have
    ended, at the latest ``max_drain_s`` after the arrivals, or once ``interrupted`` returns true;
    requests in progress are then cancelled and recorded as unfinished. ``vocab`` supplies the
    tokens of prompts if the API takes token ids. Only the clients of the ``shard`` are driven.
    ``starts_in_s`` is called after everything is loaded, and returns the number of seconds until
    the run begins.
    """
    allow_many_connections()
    streams = _streams(spec, shard)
    pool = Pool(target.base_url, target.connect_timeout_s)
    with Journal(records_dir) as journal:
        clock = RunClock(target.time_scale, starts_in_s())
        ids = count(shard.number, shard.drivers)  # different for any two drivers
        run = _Run(spec, target, _api(target, vocab), pool, journal, clock, len(streams), ids)
        try:
            complete = await run.until_over(streams, on_progress, interrupted)
        finally:
            await pool.close()
    return DriveResult(complete, run.clock.now_s(), run.last_arrival_s)


@dataclass(frozen=True, slots=True)
class _Stream:
    """A client's programs with their arrival times; ``room`` is occupied while a program runs.

    If the client has ``users``, they decide the times instead and start no program from ``until_s``
    on. Programs that are ``recorded`` start in the trace's order, even if several have equal times.
    """

    programs: Iterator[tuple[float, Job]]
    room: _Room
    users: Sequence[User] = ()
    until_s: float = 0.0
    recorded: bool = False


def _in_turn(stream: _Stream) -> Iterator[tuple[float, int, Job, _Room]]:
    """Yield the programs of a stream with their positions among programs of equal time."""
    for arrival_s, program in stream.programs:
        yield arrival_s, getattr(program, "turn", None) or 0, program, stream.room


def _streams(spec: ExperimentSpec, shard: Shard) -> list[_Stream]:
    """Return a stream for each of the shard's clients, reading the data set if there is one."""
    source = spec.source()
    return [
        _Stream(
            program_stream(plan, seed=spec.seed, source=source),
            nullcontext() if plan.in_flight is None else asyncio.Semaphore(plan.in_flight),
            recorded=plan.arrivals.timed,
        )
        if not (users := users_of(plan, seed=spec.seed, source=source))
        else _Stream(iter(()), nullcontext(), users, last_arrival_s((plan,), spec.seed))
        for plan in shard.of(spec.client_plans())
    ]


def _api(target: Target, vocab: range) -> ServerApi:
    if target.api == "generate":
        return AskGenerate(vocab, target.extra_body)
    ask = AskChat if target.api == "chat" else AskCompletions
    return ask(target.model, target.extra_body, target.max_tokens_field)


class _Run:
    """A run in progress. Create the object at the moment at which the run begins."""

    def __init__(
        self,
        spec: ExperimentSpec,
        target: Target,
        api: ServerApi,
        pool: Pool,
        journal: Journal,
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
        caller = Caller(target, api, self.clock, pool, self._on_request, ids)
        self._programs = ProgramRunner(caller, self.clock, journal)

    async def until_over(
        self,
        streams: list[_Stream],
        on_progress: Callable[[DriveProgress], None] | None,
        interrupted: Callable[[], bool],
    ) -> bool:
        """Run all streams; return False if interrupted."""
        work = asyncio.create_task(self._run_all(streams))
        try:
            while not work.done():
                if interrupted():
                    return False
                if self._past_limit():
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
        """Run all streams; at the end raise the first error that is not a program failure."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replay(group, [one for one in streams if one.recorded]))
                for stream in streams:
                    if not stream.recorded:
                        group.create_task(self._arrivals(group, stream))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _replay(self, group: asyncio.TaskGroup, streams: list[_Stream]) -> None:
        """Start the programs of all clients of a trace in the order of the trace."""
        await self.clock.sleep_until(0.0)
        merged = heapq.merge(*map(_in_turn, streams), key=itemgetter(0, 1))
        for arrival_s, _, program, room in merged:
            await self.clock.sleep_until(arrival_s)
            self.last_arrival_s = max(self.last_arrival_s, arrival_s)
            group.create_task(self._run_one(program, arrival_s, room))
        self._arrivals_open -= len(streams)

    async def _arrivals(self, group: asyncio.TaskGroup, stream: _Stream) -> None:
        """Start one client's programs, each of which is prepared before it is due."""
        # users start to think at the beginning of the run, not before
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
            await self._programs.run(following.program, following.at_s)

    async def _run_one(self, program: Job, arrival_s: float, room: _Room) -> None:
        waits = isinstance(room, asyncio.Semaphore) and room.locked()
        async with room:
            await self._programs.run(program, self.clock.now_s() if waits else arrival_s)

    def _past_limit(self) -> bool:
        if self._arrivals_open:
            return False
        end_s = max(self.last_arrival_s, self._spec.duration_s or 0.0)
        return self.clock.now_s() > end_s + self._spec.max_drain_s

    def _on_request(self, record: RequestRecord) -> None:
        self._journal.request(record)
        if record.finish_s is not None:
            self._service[record.client] += record.input_tokens + 2 * record.output_tokens

    def _progress(self) -> DriveProgress:
        programs = self._programs
        return DriveProgress(
            now_s=self.clock.now_s(),
            end_s=self._spec.duration_s,
            programs_done=programs.done,
            programs_started=programs.started,
            service=dict(self._service),
        )
