"""The exchange of one request with one worker, whose answer is passed on to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ServerTimeoutError,
    web,
)

from fairbench_load import headers
from fairbench_load.http_server import MAX_BODY_BYTES, Problem, error_body
from fairbench_load.openai import Fault, whole_fault
from fairbench_serve.answers import StreamReader, Usage, is_object, problem_of, usage_of
from fairbench_serve.calls import Call
from fairbench_serve.ingress import AttemptFailure, RequestInFlight

RETURNED, RETRY_AFTER = ("x-request-id",), "Retry-After"
EVENTS, JSON = "text/event-stream", "application/json"
# maximum number of seconds of a Retry-After header that the router passes on to a client
LONGEST_RETRY_S = 3_600
SERVED, REFUSED = range(200, 300), range(400, 600)
# After the last event, the router waits at most END_S seconds for the end of the stream. After a
# finish reason, the router waits at most USAGE_S seconds for the usage event.
END_S, USAGE_S = 0.5, 5.0
# seconds after which a client that reads nothing counts as disconnected
STALLED_S = 60.0
# A write returns at once while the client has at most this many unread bytes.
NO_WAIT_BYTES = 2**14


# errors of a connection to a worker or another router
CONNECTION_ERRORS = (ClientError, OSError, TimeoutError)


class WorkerFailed(Exception):
    """The failure of a worker before its answer began, with its error response if there is one."""

    def __init__(
        self, worker: int, reason: AttemptFailure, answer: web.Response | None = None
    ) -> None:
        super().__init__(f"worker {worker}: {reason.name}")
        self.worker = worker
        self.reason = reason
        self.answer = answer


class ClientLeft(ConnectionError):
    """An exception for a client that has disconnected or has stopped reading."""


@dataclass(eq=False)
class Exchange:
    """A client's request that is sent to one worker, and the answer that the client receives.

    After ``run``, ``usage`` holds the token counts, and ``failure`` is None for a complete answer.
    ``on_begun`` is called when the client receives the first bytes, and ``on_heard`` is called each
    time output of the worker arrives.
    """

    request: web.Request
    call: Call
    flight: RequestInFlight
    on_begun: Callable[[], None]
    on_heard: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._stream: web.StreamResponse | None = None
        self._reader = StreamReader(hide_usage=self.call.hide_usage, answers=self.call.answers)
        self.usage = Usage()
        self.failure: AttemptFailure | None = AttemptFailure.LEFT

    @property
    def is_finished(self) -> bool:
        """Return whether a finish reason has arrived in the stream."""
        return self._reader.is_finished

    async def run(
        self, session: ClientSession, url: str, sent: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send the call with the headers ``sent``, and return the answer that the client got.

        If this task is cancelled or the client stops reading, the router closes the connection to
        the worker, and the worker aborts the request. Raises WorkerFailed if the worker fails
        before its answer begins, and ClientLeft if the client disconnects.
        """
        lost: AttemptFailure | None = None  # the reason if the worker becomes unavailable
        try:
            async with asyncio.timeout(None) as scope:

                def on_lost(reason: AttemptFailure) -> None:
                    nonlocal lost
                    lost = reason
                    scope.reschedule(0.0)

                self.flight.on_lost = on_lost
                async with session.post(
                    url, data=self.call.body(), headers=sent, allow_redirects=False
                ) as answer:
                    return await self._pass_on(answer)
        except ClientLeft:
            raise
        except CONNECTION_ERRORS as error:
            if self._stream is None:
                raise WorkerFailed(self.flight.worker, lost or _reason_of(error)) from error
            self.failure = AttemptFailure.CUT
            # Ignore later reports that the worker was lost, because the answer has already failed.
            self.flight.on_lost = lambda reason: None
            problem = Problem(HTTPStatus.BAD_GATEWAY, "the worker failed during this answer")
            await self._write(self._stream, self._reader.end_with(problem))
            return self._stream
        finally:
            if self._stream is not None:
                self.usage = self._reader.usage()

    async def _pass_on(self, answer: ClientResponse) -> web.StreamResponse:
        is_stream = self.call.stream and answer.ok and answer.content_type == EVENTS
        returned = _returned(answer) | {"Content-Type": EVENTS if is_stream else JSON}
        returned[headers.WORKER] = str(self.flight.worker)
        if self.flight.request.demoted:
            returned[headers.DEMOTED] = "1"
        if not is_stream:
            return self._whole_answer(await self._read_whole(answer), answer.status, returned)
        stream = web.StreamResponse(status=answer.status, headers=returned)
        async for chunk in self._chunks(answer):
            told = self._reader.feed(chunk)
            self._check_unsent()
            if self._reader.has_new_output:
                self.flight.output_tokens = self._reader.output_so_far
                self.on_heard()
            # While the router waits for a slow client, it reads nothing from the worker.
            await self._write(stream, told)
        rest, failed = self._reader.rest(), self._reader.usage().failed
        self._check_unsent()
        if self._patience_s() is None and not failed:
            raise ClientPayloadError("the stream ends without its final event")
        if not failed:
            # Even a complete answer without output shows that the worker makes progress.
            self.on_heard()
        await self._write(stream, rest)
        self.failure = AttemptFailure.ANSWERED if failed else None
        return stream

    async def _chunks(self, answer: ClientResponse) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream as they arrive.

        A connection error or timeout after an answer's finish reason ends the stream, but does not
        count as a failure of the worker.
        """
        while True:
            try:
                async with asyncio.timeout(self._patience_s()):
                    chunk = await answer.content.readany()
            except (ClientError, TimeoutError):
                if self._patience_s() is None:
                    raise
                return
            if not chunk:
                return
            yield chunk

    def _patience_s(self) -> float | None:
        if self._reader.is_complete:
            return END_S
        return USAGE_S if self._reader.is_finished else None

    def _check_unsent(self) -> None:
        """Raise WorkerFailed if the answer is invalid and none of it was sent to the client."""
        if self._reader.fault is not None and self._stream is None:
            raise self._failed(self._reader.fault)

    def _failed(self, fault: Fault) -> WorkerFailed:
        worker = self.flight.worker
        return WorkerFailed(worker, AttemptFailure.ANSWERED, problem_of(fault, worker).response())

    async def _read_whole(self, answer: ClientResponse) -> bytes:
        body = bytearray()
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise ClientPayloadError(f"the body has more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    def _whole_answer(self, body: bytes, status: int, returned: Mapping[str, str]) -> web.Response:
        """Return the response for an answer that is not streamed.

        Raises WorkerFailed for an error status or a missing answer. A retry at another worker shows
        whether the worker or the request causes the error.
        """
        if status in REFUSED and not is_object(body):
            body = error_body(status, f"the worker answered with status {status} without JSON")
        response = web.Response(body=body, status=status, headers=returned)
        if status in REFUSED:
            raise WorkerFailed(self.flight.worker, AttemptFailure.ANSWERED, response)
        if status not in SERVED:  # a redirect is an error, too
            odd = Problem(HTTPStatus.BAD_GATEWAY, f"the worker answered with status {status}")
            raise WorkerFailed(self.flight.worker, AttemptFailure.ANSWERED, odd.response())
        if (fault := whole_fault(body)) is not None:
            raise self._failed(fault)
        self.on_heard()
        self.usage = usage_of(body)
        self.failure = None
        return response

    async def _write(self, stream: web.StreamResponse, data: bytes) -> None:
        """Send data to the client; the first call also sends the HTTP headers before the data.

        Raises ClientLeft if the client has disconnected.
        """
        if not data:
            return
        transport = self.request.transport
        try:
            # Before the client receives data, another worker can still serve the request.
            if self._stream is None:
                await stream.prepare(self.request)
                self._stream = stream
                self.on_begun()
            if transport is None or transport.get_write_buffer_size() + len(data) <= NO_WAIT_BYTES:
                await stream.write(data)
                return
            self.flight.paused = True
            async with asyncio.timeout(STALLED_S):
                await stream.write(data)
        except TimeoutError:
            assert transport is not None
            # ``abort`` returns at once, whereas ``close`` waits until the client has read all data.
            transport.abort()
            raise ClientLeft from None
        except ConnectionError as error:
            raise ClientLeft from error
        finally:
            self.flight.paused = False


def _returned(answer: ClientResponse) -> dict[str, str]:
    returned = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
    wait = answer.headers.get(RETRY_AFTER, "")
    if wait.isascii() and wait.isdecimal() and len(wait) < 6 and int(wait) <= LONGEST_RETRY_S:
        returned[RETRY_AFTER] = wait
    return returned


def _reason_of(error: Exception) -> AttemptFailure:
    if isinstance(error, ClientConnectorError | ServerTimeoutError):
        return AttemptFailure.UNREACHED
    # ``STALE`` means a closed connection. ``BROKE`` means invalid data, the only other error.
    return (
        AttemptFailure.STALE
        if isinstance(error, ClientConnectionError | OSError)
        else AttemptFailure.BROKE
    )
