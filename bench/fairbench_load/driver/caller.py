"""Code that sends a request, waits until its answer has ended, and records the result."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from fairbench.core import Prompt, prompt_tokens
from fairbench.errors import ProgramFailed
from fairbench.sim.distinct_prefixes import Answers, DistinctPrefixes
from fairbench.sim.program_runner import output_segment
from fairbench_load.driver.connection import Connection, Disconnected, Pool, RunClock, Stream
from fairbench_load.driver.server_apis import ApiCall, ServerApi, StreamedAnswer
from fairbench_load.driver.target import DriverTarget, Lengths
from fairbench_load.headers import (
    CLIENT,
    DEPTH,
    OBJECTIVE_ALIASES,
    OUTPUT_TOKENS,
    PROGRAM,
    REQUEST_ID,
    ROUTING_KEY,
    tag,
    worker_in,
)
from fairbench_load.records import FINISHED, REFUSED, UNFINISHED, RequestRecord


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A call of the model by a program, to be sent at time ``due_s``.

    ``output_tokens`` is the answer's length in the workload; ``max_new_tokens`` limits the length.
    ``name`` identifies the call in its program. ``answers`` are the program's earlier answers.
    """

    program_id: int
    client: str
    depth: int
    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    due_s: float
    name: str = ""
    answers: Answers = field(default_factory=dict)

    @property
    def true_tokens(self) -> int:
        """The number of output tokens that a server produces if it respects the call's limits."""
        return min(self.output_tokens, self.max_new_tokens)

    def limits(self, lengths: Lengths) -> tuple[int, int | None]:
        """Return the request's maximum and minimum number of output tokens."""
        if lengths == "header":
            return self.max_new_tokens, None
        return self.true_tokens, self.true_tokens if lengths == "exact" else None


@dataclass(slots=True)
class Attempt:
    """An attempt to send a call to a server, with its result so far.

    ``max_new_tokens`` and ``min_new_tokens`` are the limits in the request. ``held_s`` is the time
    in seconds for which the call waited in the driver for a free slot. ``submit_s`` is the time at
    which the request was sent.
    """

    request_id: int
    call: ProgramCall
    max_new_tokens: int
    min_new_tokens: int | None
    stream: Stream
    held_s: float = 0.0
    submit_s: float | None = None
    error: str | None = None
    compulsory_tokens: int | None = None

    def record(self, status: str, now_s: float) -> RequestRecord:
        """Return the record of this attempt, which ended at time ``now_s`` with ``status``."""
        call, stream, answer = self.call, self.stream, self.stream.answer
        first_s, last_s = stream.chunk_s[:1], stream.chunk_s[-1:]
        # If an answer is complete but was not sent in chunks, all its tokens count as received now.
        if status == FINISHED and not stream.chunk_s:
            first_s = last_s = [now_s]
        admitted_s = None
        if self.submit_s is not None and answer.queue_s is not None:
            admitted_s = self.submit_s + answer.queue_s
        reported = answer.input_tokens
        return RequestRecord(
            request_id=self.request_id,
            program_id=call.program_id,
            client=call.client,
            depth=call.depth,
            worker=stream.worker if stream.worker >= 0 else worker_in(answer.answer_id),
            arrival_s=call.due_s + self.held_s,
            submit_s=self.submit_s,
            held_s=self.held_s,
            admitted_s=admitted_s,
            first_token_s=first_s[0] if first_s else None,
            finish_s=last_s[0] if status == FINISHED else None,
            input_tokens=prompt_tokens(call.prompt) if reported is None else reported,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            max_new_tokens=self.max_new_tokens,
            retractions=answer.retractions,
            status=status,
            error=self.error,
            chunk_s=stream.chunk_s,
            chunk_tokens=stream.chunk_tokens,
            min_new_tokens=self.min_new_tokens,
            estimated=answer.estimated and bool(answer.output_tokens),
            compulsory_tokens=self.compulsory_tokens,
        )


@dataclass(eq=False)
class Caller:
    """A sender of programs' requests that passes each request's record to ``on_record``.

    ``prefixes`` are the prefixes of all answered prompts; None means that token ids are unknown.
    """

    target: DriverTarget
    api: ServerApi
    clock: RunClock
    pool: Pool
    on_record: Callable[[RequestRecord], None]
    ids: Iterator[int] = field(default_factory=count)
    prefixes: DistinctPrefixes | None = None

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.target.max_concurrency or sys.maxsize)

    async def send_call(self, call: ProgramCall, outputs: Mapping[str, bytes]) -> StreamedAnswer:
        """Send one LLM call of a client's program to the server, and return the answer.

        ``outputs`` holds earlier answers that the prompt contains. Every call is recorded; a
        cancelled call is recorded as unfinished. Raises ProgramFailed if no complete answer
        arrives.
        """
        most, least = call.limits(self.target.lengths)
        # The user's ``min_tokens`` in ``extra_body`` replaces the call's minimum output length.
        if "min_tokens" in self.target.extra_body:
            least = None
        attempt = Attempt(next(self.ids), call, most, least, self._stream())
        try:
            await self._attempt(attempt, outputs)
        except Disconnected as error:
            attempt.error = str(error)
        except asyncio.CancelledError:
            self._record_end(attempt, UNFINISHED)
            raise
        if attempt.error is not None:
            self._record_end(attempt, REFUSED)
            raise ProgramFailed(f"request {attempt.request_id}: {attempt.error}")
        answer = attempt.stream.answer
        if self.prefixes is not None:
            output = output_segment(call.program_id, call.name, answer.output_tokens)
            attempt.compulsory_tokens = self.prefixes.add(call.prompt, output, call.answers)
        self._record_end(attempt, FINISHED)
        return answer

    async def _attempt(self, attempt: Attempt, outputs: Mapping[str, bytes]) -> None:
        call = attempt.call
        body = self.api.body(
            ApiCall(
                call.prompt,
                outputs,
                self._client_name(call),
                attempt.max_new_tokens,
                attempt.min_new_tokens,
            )
        )
        head = self.pool.head(self.api.path, self._headers(attempt))
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        held, asked_s = self._slots.locked(), self.clock.now_s()
        async with self._slots:
            if held:
                attempt.held_s = self.clock.now_s() - asked_s
            connection = self.pool.idle()
            if connection is not None:
                await self._exchange(attempt, request, connection)
                if not (attempt.error and attempt.stream.untouched):
                    await self._wait_and_ask_again(attempt, request)
                    return
                # The server had closed the idle connection, so a new connection is needed.
                attempt.stream = self._stream()
            await self._exchange(attempt, request, await self.pool.fresh())
            await self._wait_and_ask_again(attempt, request)

    async def _wait_and_ask_again(self, attempt: Attempt, request: bytes) -> None:
        """Retry after an answer with status 429 (too many requests), if the settings allow.

        The recorded ``submit_s`` is the time of the first try, so a request's latency includes the
        waits before retries. The request fails at once if its waits would exceed ``longest_wait_s``
        in total.
        """
        submit_s, loop = attempt.submit_s, asyncio.get_running_loop()
        last_s = loop.time() + self.target.longest_wait_s
        while self.target.rate_limited == "wait":
            wait_s = attempt.stream.retry_after_s
            if wait_s is None or loop.time() + wait_s > last_s:
                return
            await asyncio.sleep(wait_s)
            attempt.stream = self._stream()
            await self._exchange(attempt, request, await self.pool.fresh())
            attempt.submit_s = submit_s

    def _stream(self) -> Stream:
        unnamed = -1 if self.target.foreign_router else 0
        return Stream(self.api.answer(), self.clock, self.target.idle_timeout_s, unnamed)

    async def _exchange(self, attempt: Attempt, request: bytes, connection: Connection) -> None:
        attempt.submit_s = self.clock.now_s()
        attempt.stream.send(request, connection)
        await attempt.stream.wait()
        attempt.error = attempt.stream.error
        self.pool.keep_connection(connection)

    def _client_name(self, call: ProgramCall) -> str:
        return self.target.names.get(call.client, call.client)

    def _headers(self, attempt: Attempt) -> dict[str, str]:
        call = attempt.call
        headers = {
            **self.target.headers,
            CLIENT: self._client_name(call),
            ROUTING_KEY: self._client_name(call),
            PROGRAM: str(call.program_id),
            DEPTH: str(call.depth),
            OUTPUT_TOKENS: str(call.true_tokens),
        }
        if (objective := self.target.objectives.get(call.client)) is not None:
            headers[OBJECTIVE_ALIASES[0]] = objective
        if self.target.foreign_router:
            headers[REQUEST_ID] = tag(attempt.request_id, headers)
        return headers

    def _record_end(self, attempt: Attempt, status: str) -> None:
        self.on_record(attempt.record(status, self.clock.now_s()))
