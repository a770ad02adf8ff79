"""An exchange: one request sent to one worker, and its answer passed on as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
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

from fairbench.live import headers
from fairbench.live.http_server import MAX_BODY_BYTES
from fairbench.live.json_errors import Problem, error_body
from fairbench.live.openai_answers import Fault, whole_fault
from fairbench_serve.answers import StreamReader, Usage, is_object, problem_of, usage_of
from fairbench_serve.calls import Call
from fairbench_serve.ingress import Flight

# End of an exchange. LEFT: the client left. EVICTED: another request took its slot. LOST, RETRIED:
# the worker left, and no other worker, or another worker, got the request.
OUTCOMES = OK, ERROR, LEFT, EVICTED, LOST, RETRIED = (
    *("ok", "error", "left"),
    *("evicted", "lost", "retried"),
)
RETURNED, RETRY_AFTER = ("x-request-id",), "Retry-After"
EVENTS, JSON = "text/event-stream", "application/json"
LONGEST_RETRY_S = 3_600  # a client is not told to wait for longer
SERVED, REFUSED = range(200, 300), range(400, 600)
# Seconds that a connection may stay open after the last event, and after a finish reason, which the
# usage follows.
END_S, USAGE_S = 0.5, 5.0
STALLED_S = 60.0  # seconds without reading after which a client counts as gone
# up to this many unread bytes, a write returns immediately and needs no costly timer
NO_WAIT_BYTES = 2**14


class How(Enum):
    """The way in which a worker failed before its answer began."""

    UNREACHED = auto()  # there was no connection, so the worker has not seen the request
    BROKE = auto()  # the connection ended within the answer, or the data is not an answer
    STALE = auto()  # the connection ended before an answer, perhaps because it was idle
    HUNG = auto()  # the worker is up, but does not answer
    DIED = auto()  # the worker is down
    ANSWERED = auto()  # the worker answered with an error, or without an answer


class WorkerFailed(Exception):
    """The worker failed before its answer began, perhaps with an error ``answer``."""

    def __init__(self, worker: int, how: How, answer: web.Response | None = None) -> None:
        super().__init__(f"worker {worker}: {how.name}")
        self.worker = worker
        self.how = how
        self.answer = answer


class ClientLeft(ConnectionError):
    """The connection to the client failed, not the connection to the worker."""


@dataclass(eq=False)
class Exchange:
    """Sends a request to a worker and answers the client; ``usage`` and ``outcome`` are results.

    ``on_begun`` is called when the client receives the first part of the answer, ``on_heard`` when
    output has arrived.
    """

    request: web.Request
    call: Call
    flight: Flight
    on_begun: Callable[[], None]
    on_heard: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._stream: web.StreamResponse | None = None
        self._reader = StreamReader(hide_usage=self.call.hide_usage, answers=self.call.answers)
        self._left: How | None = None  # how the worker left meanwhile, if it did
        self.usage = Usage()
        self.outcome = LEFT

    @property
    def is_finished(self) -> bool:
        """Return whether a stream has told its finish reason."""
        return self._reader.is_finished

    async def run(
        self, session: ClientSession, url: str, sent: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send the call with the headers ``sent``; return the answer given to the client.

        If cancelled, or if the client stops reading, the connection to the worker is closed, which
        tells the worker that the request is no longer needed. Raises WorkerFailed and ClientLeft.
        """
        try:
            async with asyncio.timeout(None) as scope:

                def lost() -> None:
                    self._left = How.DIED if self.flight.died else How.HUNG
                    scope.reschedule(0.0)

                self.flight.on_lost = lost
                async with session.post(
                    url, data=self.call.body(), headers=sent, allow_redirects=False
                ) as answer:
                    return await self._pass_on(answer)
        except ClientLeft:
            raise
        except (ClientError, OSError) as error:
            if self._stream is None:
                raise WorkerFailed(self.flight.worker, self._left or _how(error)) from error
            self.outcome = LOST
            return await self._break_off(self._stream)
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
            return self._whole(await self._read(answer), answer.status, returned)
        stream = web.StreamResponse(status=answer.status, headers=returned)
        async for chunk in self._chunks(answer):
            told = self._reader.feed(chunk)
            self._check_unsent()
            if self._reader.has_new_output:
                self.on_heard()
            # This waits while the client is slow, and so stops reading from the worker.
            await self._write(stream, told)
        rest, failed = self._reader.rest(), self._reader.usage().failed
        self._check_unsent()
        if self._patience_s() is None and not failed:
            raise ClientPayloadError("the stream ends without its final event")
        if not failed:
            self.on_heard()  # an answer may end without output
        await self._write(stream, rest)
        self.outcome = ERROR if failed else OK
        return stream

    async def _chunks(self, answer: ClientResponse) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream as they arrive.

        A worker that says that its answer is over has served the request, however its connection
        ends, and also if the connection does not end.
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
        """Raise WorkerFailed for a stream without an answer of which nothing was passed on."""
        if self._reader.fault is not None and self._stream is None:
            raise self._failed(self._reader.fault)

    def _failed(self, fault: Fault) -> WorkerFailed:
        worker = self.flight.worker
        return WorkerFailed(worker, How.ANSWERED, problem_of(fault, worker).response())

    async def _read(self, answer: ClientResponse) -> bytes:
        body = bytearray()
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise ClientPayloadError(f"the body has more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    def _whole(self, body: bytes, status: int, returned: Mapping[str, str]) -> web.Response:
        """Return an answer in one piece.

        Raises WorkerFailed for an error of any status, and for a success without an answer: only
        another worker's answer to the same request reveals the cause.
        """
        if status in REFUSED and not is_object(body):
            body = error_body(status, f"the worker answered with status {status} without JSON")
        response = web.Response(body=body, status=status, headers=returned)
        if status in REFUSED:
            raise WorkerFailed(self.flight.worker, How.ANSWERED, response)
        if status not in SERVED:  # redirects are not followed
            odd = Problem(HTTPStatus.BAD_GATEWAY, f"the worker answered with status {status}")
            raise WorkerFailed(self.flight.worker, How.ANSWERED, odd.response())
        if (fault := whole_fault(body)) is not None:
            raise self._failed(fault)
        self.on_heard()
        self.usage = usage_of(body)
        self.outcome = OK
        return response

    async def _write(self, stream: web.StreamResponse, data: bytes) -> None:
        """Pass on data after the head. Raises ClientLeft, also if the client stops reading."""
        if not data:
            return
        transport = self.request.transport
        try:
            # not earlier, because another worker could have been asked until now
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
            transport.abort()  # a normal close would wait until everything is read
            raise ClientLeft from None
        except ConnectionError as error:
            raise ClientLeft from error
        finally:
            self.flight.paused = False

    async def _break_off(self, stream: web.StreamResponse) -> web.StreamResponse:
        """End a stream whose worker is gone with an error in the stream's format."""
        self.flight.on_lost = lambda: None  # the reason is known, and ``scope`` has ended
        problem = Problem(HTTPStatus.BAD_GATEWAY, "the worker failed during this answer")
        await self._write(stream, self._reader.end_with(problem))
        return stream


def _returned(answer: ClientResponse) -> dict[str, str]:
    """Return the worker's headers that clients may see."""
    returned = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
    wait = answer.headers.get(RETRY_AFTER, "")
    if wait.isascii() and wait.isdecimal() and len(wait) < 6 and int(wait) <= LONGEST_RETRY_S:
        returned[RETRY_AFTER] = wait
    return returned


def _how(error: Exception) -> How:
    if isinstance(error, ClientConnectorError | ServerTimeoutError):
        return How.UNREACHED
    # Other errors concern the received data: its payload, or its head.
    return How.STALE if isinstance(error, ClientConnectionError | OSError) else How.BROKE
