"""The caller: sends a request, waits for the end of its answer, and records the result."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from fairbench.core import Prompt, prompt_tokens
from fairbench.errors import ProgramFailed
from fairbench.live.driver.clock import RunClock
from fairbench.live.driver.connection import Connection, Disconnected, Pool
from fairbench.live.driver.server_apis import Answer, Question, ServerApi
from fairbench.live.driver.sse_client import Stream
from fairbench.live.driver.target import Lengths, Target
from fairbench.live.headers import (
    CLIENT,
    DEPTH,
    OBJECTIVE_ALIASES,
    OUTPUT_TOKENS,
    PROGRAM,
    ROUTING_KEY,
)
from fairbench.live.records import FINISHED, REFUSED, UNFINISHED, RequestRecord
from fairbench.live.request_tag import REQUEST_ID, tag, worker_in


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A program's call of the model. ``due_s`` is the time at which the call should be sent."""

    program_id: int
    client: str
    depth: int
    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    due_s: float

    @property
    def true_tokens(self) -> int:
        """The number of tokens that the call produces if the server respects the limits."""
        return min(self.output_tokens, self.max_new_tokens)

    def limits(self, lengths: Lengths) -> tuple[int, int | None]:
        """Return the (maximum, minimum) number of tokens to ask the server for."""
        if lengths == "header":
            return self.max_new_tokens, None
        return self.true_tokens, self.true_tokens if lengths == "exact" else None


@dataclass(slots=True)
class Attempt:
    """An attempt: ``max_tokens`` and ``min_tokens`` are sent; the other fields are filled in."""

    request_id: int
    call: ProgramCall
    max_tokens: int
    min_tokens: int | None
    stream: Stream
    held_s: float = 0.0
    sent_s: float | None = None
    error: str | None = None

    def record(self, status: str, now_s: float) -> RequestRecord:
        """Return the record of the attempt, which ended at ``now_s``."""
        call, stream, answer = self.call, self.stream, self.stream.answer
        first_s, last_s = stream.chunk_s[:1], stream.chunk_s[-1:]
        if status == FINISHED and not stream.chunk_s:  # an answer without a token
            first_s = last_s = [now_s]
        admitted_s = None
        if self.sent_s is not None and answer.queue_s is not None:
            admitted_s = self.sent_s + answer.queue_s
        reported = answer.input_tokens
        return RequestRecord(
            request_id=self.request_id,
            program_id=call.program_id,
            client=call.client,
            depth=call.depth,
            worker=stream.worker if stream.worker >= 0 else worker_in(answer.answer_id),
            arrival_s=call.due_s + self.held_s,
            sent_s=self.sent_s,
            held_s=self.held_s,
            admitted_s=admitted_s,
            first_token_s=first_s[0] if first_s else None,
            finish_s=last_s[0] if status == FINISHED else None,
            input_tokens=prompt_tokens(call.prompt) if reported is None else reported,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            max_new_tokens=self.max_tokens,
            retractions=answer.retractions,
            status=status,
            error=self.error,
            chunk_s=stream.chunk_s,
            chunk_tokens=stream.chunk_tokens,
            min_new_tokens=self.min_tokens,
            estimated=answer.estimated and bool(answer.output_tokens),
        )


@dataclass(eq=False)
class Caller:
    """Sends calls to the target. Every call ends as a record that is passed to ``on_record``."""

    target: Target
    api: ServerApi
    clock: RunClock
    pool: Pool
    on_record: Callable[[RequestRecord], None]
    ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.target.max_concurrency or sys.maxsize)

    async def call(self, call: ProgramCall, outputs: Mapping[str, bytes]) -> Answer:
        """Make a call whose prompt may contain ``outputs``.

        Raises ProgramFailed if there is no complete answer. The record is written in any case, that
        of a cancelled call as unfinished.
        """
        most, least = call.limits(self.target.lengths)
        if "min_tokens" in self.target.extra_body:  # the user's value is sent, or none
            least = None
        attempt = Attempt(next(self.ids), call, most, least, self._stream())
        try:
            await self._attempt(attempt, outputs)
        except Disconnected as error:
            attempt.error = str(error)
        except asyncio.CancelledError:
            self._record(attempt, UNFINISHED)
            raise
        if attempt.error is not None:
            self._record(attempt, REFUSED)
            raise ProgramFailed(f"request {attempt.request_id}: {attempt.error}")
        self._record(attempt, FINISHED)
        return attempt.stream.answer

    async def _attempt(self, attempt: Attempt, outputs: Mapping[str, bytes]) -> None:
        """Fill in an attempt. Raises Disconnected if there is no connection."""
        call = attempt.call
        body = self.api.body(
            Question(call.prompt, outputs, self._name(call), attempt.max_tokens, attempt.min_tokens)
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
                # The server had closed this connection; send the request again.
                attempt.stream = self._stream()
            await self._exchange(attempt, request, await self.pool.fresh())
            await self._wait_and_ask_again(attempt, request)

    async def _wait_and_ask_again(self, attempt: Attempt, request: bytes) -> None:
        """Retry while the server reports overload, if the run asks for retries.

        The request's send time is that of its first attempt: the wait is attributed to the server.
        The request fails immediately if the server asks for more time than is left of the longest
        wait.
        """
        sent_s, loop = attempt.sent_s, asyncio.get_running_loop()
        last_s = loop.time() + self.target.longest_wait_s
        while self.target.rate_limited == "wait":
            wait_s = attempt.stream.retry_after_s
            if wait_s is None or loop.time() + wait_s > last_s:
                return
            await asyncio.sleep(wait_s)
            attempt.stream = self._stream()
            await self._exchange(attempt, request, await self.pool.fresh())
            attempt.sent_s = sent_s

    def _stream(self) -> Stream:
        unnamed = -1 if self.target.foreign_router else 0
        return Stream(self.api.answer(), self.clock, self.target.idle_timeout_s, unnamed)

    async def _exchange(self, attempt: Attempt, request: bytes, connection: Connection) -> None:
        attempt.sent_s = self.clock.now_s()
        attempt.stream.send(request, connection)
        await attempt.stream.wait()
        attempt.error = attempt.stream.error
        self.pool.give_back(connection)

    def _name(self, call: ProgramCall) -> str:
        return self.target.names.get(call.client, call.client)

    def _headers(self, attempt: Attempt) -> dict[str, str]:
        call = attempt.call
        headers = {
            **self.target.headers,
            CLIENT: self._name(call),
            ROUTING_KEY: self._name(call),
            PROGRAM: str(call.program_id),
            DEPTH: str(call.depth),
            OUTPUT_TOKENS: str(call.true_tokens),
        }
        if (objective := self.target.objectives.get(call.client)) is not None:
            headers[OBJECTIVE_ALIASES[0]] = objective
        if self.target.foreign_router:
            headers[REQUEST_ID] = tag(attempt.request_id, headers)
        return headers

    def _record(self, attempt: Attempt, status: str) -> None:
        self.on_record(attempt.record(status, self.clock.now_s()))
