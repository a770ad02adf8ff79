"""An exchange: one request at one worker, sent, and its answer passed on as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus

from aiohttp import ClientError, ClientPayloadError, ClientResponse, ClientSession, web

from fairbench.live import headers
from fairbench.live.router.calls import Call
from fairbench.live.router.dispatcher import Flight
from fairbench.live.router.problem import Problem
from fairbench.live.router.usage import StreamReader, Usage, usage_of

# How an exchange ended. LEFT: the client went. LOST, RETRIED: the worker did, the answer having
# begun or not.
OK, ERROR, LEFT, LOST, RETRIED = "ok", "error", "left", "lost", "retried"
RETURNED = ("Content-Type", "Retry-After", "x-request-id")
STALLED_S = 60.0  # without reading anything, after which a client is taken to have left
NO_WAIT_BYTES = 2**14  # with no more unread a write returns at once, and needs no costly timer


class WorkerLost(Exception):
    """The connection to the worker failed before its answer began, so another may be asked."""


class ClientLeft(ConnectionError):
    """The connection to the client failed, and not that to the worker."""


class Exchange:
    """Asks the worker and answers the client. ``usage`` and ``outcome`` say how it went.

    ``began`` is called whenever a part of a stream comes.
    """

    def __init__(
        self, request: web.Request, call: Call, flight: Flight, began: Callable[[], None]
    ) -> None:
        self._began = began
        self._request = request
        self._call = call
        self._flight = flight
        self._stream: web.StreamResponse | None = None
        self._reader = StreamReader(hide_usage=call.hide_usage)
        self.usage = Usage()
        self.outcome = LEFT

    async def run(
        self, session: ClientSession, url: str, sent: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send the call with the headers ``sent``; returns what the client was answered.

        Cancelled or with a client that reads no more, it closes the connection to the worker,
        which is how workers learn that a request is not wanted any longer. Raises WorkerLost and
        ClientLeft.
        """
        try:
            async with asyncio.timeout(None) as scope:
                self._flight.on_lost = partial(scope.reschedule, 0.0)
                async with session.post(url, data=self._call.body(), headers=sent) as answer:
                    return await self._pass_on(answer)
        except ClientLeft:
            raise
        except (ClientError, OSError) as error:
            if self._stream is None:
                self.outcome = RETRIED
                raise WorkerLost from error
            self.outcome = LOST
            return await self._break_off(self._stream)
        finally:
            if self._stream is not None:
                self.usage = self._reader.usage()

    async def _pass_on(self, answer: ClientResponse) -> web.StreamResponse:
        returned = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
        returned[headers.WORKER] = str(self._flight.worker)
        if not (self._call.stream and answer.ok):
            body = await answer.read()
            self.usage = usage_of(body)
            self.outcome = OK if answer.ok else ERROR
            return web.Response(body=body, status=answer.status, headers=returned)
        stream = web.StreamResponse(status=answer.status, headers=returned)
        async for chunk in answer.content.iter_any():
            self._began()
            # Waits while the client is slow, and so stops reading from the worker.
            await self._write(stream, self._reader.feed(chunk))
        if self._stream is None:
            raise ClientPayloadError("an empty stream")
        await self._write(stream, self._reader.rest())
        self.outcome = ERROR if self._reader.usage().failed else OK
        return stream

    async def _write(self, stream: web.StreamResponse, data: bytes) -> None:
        """Pass on, the head first. Raises ClientLeft, also if nothing is read for long."""
        transport = self._request.transport
        try:
            if self._stream is None:  # not before: until now another worker could be asked
                await stream.prepare(self._request)
                self._stream = stream
            if transport is None or transport.get_write_buffer_size() + len(data) <= NO_WAIT_BYTES:
                await stream.write(data)
                return
            async with asyncio.timeout(STALLED_S):
                await stream.write(data)
        except TimeoutError:
            assert transport is not None
            transport.abort()  # to close it would wait until all is read
            raise ClientLeft from None
        except ConnectionError as error:
            raise ClientLeft from error

    async def _break_off(self, stream: web.StreamResponse) -> web.StreamResponse:
        """End a stream whose worker is gone, in the stream's own way."""
        self._flight.on_lost = lambda: None  # it is known, and ``scope`` has ended
        problem = Problem(HTTPStatus.BAD_GATEWAY, "the worker failed during this answer")
        await self._write(stream, problem.event())
        return stream
