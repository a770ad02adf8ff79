"""The client of server-sent events: splits and times the events of a streamed response."""

from __future__ import annotations

import asyncio
import re
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime

from fairbench.live.driver.clock import RunClock
from fairbench.live.driver.connection import Connection, Disconnected
from fairbench.live.driver.server_apis import Answer, BadEvent
from fairbench.live.headers import WORKER

OK, TOO_MANY = 200, 429
END_S = 0.5  # seconds that a connection may stay open after the end of its answer
UNSAID_WAIT_S, SHORTEST_WAIT_S = 1.0, 0.1
MAX_ERROR_BYTES = 500  # bytes of a body without events that are kept for the error message
_WORKER = WORKER.encode()
_WORKER_NUMBER = re.compile(rb"[0-9]{1,9}")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
MAX_EVENT_BYTES = 16 * 2**20


class EventSplitter:
    """A splitter that takes bytes and returns the payloads of complete events.

    ``event`` is the name of the event whose payload was returned last, if it has a name.
    """

    def __init__(self) -> None:
        self.event = ""
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the payloads of ``data:`` lines in order; other fields and comments are skipped.

        Raises ValueError for an event of more than ``MAX_EVENT_BYTES``.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
        return self._payloads(lines)

    def _payloads(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not self._begun:
                self._begun, line = True, line.removeprefix(BOM_UTF8)
            if line.startswith(b"data:"):
                yield line[5:].strip()
            elif line.startswith(b"event:"):
                self.event = line[6:].strip().decode(errors="replace")
            elif not line.strip():
                self.event = ""


def waiting_s(retry_after: bytes) -> float:
    """Return the seconds to wait according to a Retry-After header; 1 s if it is invalid."""
    text = retry_after.decode("latin-1").strip()
    try:
        wait_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        wait_s = float(text) if _SECONDS.fullmatch(text) else UNSAID_WAIT_S
    return max(SHORTEST_WAIT_S, wait_s)


class Stream:
    """The ``Listener`` of one request. ``over`` is done when nothing more will arrive.

    ``chunk_s`` and ``chunk_tokens`` are the times (seconds of the run) and the sizes of the chunks
    received. ``error`` is None if the answer is complete. ``untouched`` is true until the server
    has sent anything. ``unnamed`` is the worker that is assumed if the head of an answer names
    none.
    """

    def __init__(
        self, answer: Answer, clock: RunClock, idle_timeout_s: float, unnamed: int = 0
    ) -> None:
        self.answer = answer
        self.worker = -1
        self._unnamed = b"%d" % unnamed
        self.chunk_s: list[float] = []
        self.chunk_tokens: list[int] = []
        self.error: str | None = None
        self.untouched = True
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._clock = clock
        self._patience_s = idle_timeout_s
        self._events = EventSplitter()
        self._status = OK
        self._has_events = False
        self._body = b""  # the beginning of a body without events
        self._retry_after = b""
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, request: bytes, connection: Connection) -> None:
        """Send the request on a connection, and listen."""
        self._connection = connection
        connection.send(request, self)

    async def wait(self) -> None:
        """Wait for the end of the response; disconnect if cancelled."""
        try:
            await self.over
        except asyncio.CancelledError:
            self._connection.abort()
            raise
        finally:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.untouched = False
        self._status = status
        self._retry_after = headers.get(b"retry-after", b"")
        # Without a router there is only one worker; a router that refuses a request may not have
        # called any.
        worker = headers.get(_WORKER, self._unnamed if status == OK else b"")
        self.worker = int(worker) if _WORKER_NUMBER.fullmatch(worker) else -1

    def on_body(self, data: bytes) -> None:
        if not self._has_events and len(self._body) < MAX_ERROR_BYTES:
            self._body = (self._body + data)[:MAX_ERROR_BYTES]
        if self._status != OK:
            return
        try:
            self._take(data)
        except (BadEvent, ValueError) as error:
            self._connection.abort()
            self._finish(f"stream error: {error}")
            return
        self._heard_s = self._loop.time()
        if self.answer.done and self._patience_s > END_S:
            self._patience_s = END_S
            self._stop_timer()
        if self._timer is None and (self.chunk_s or self.answer.done):
            self._timer = self._loop.call_later(self._patience_s, self._check_idle)

    def _take(self, data: bytes) -> None:
        """Read the events that these bytes complete. Raises BadEvent and ValueError."""
        now_s = self._clock.now_s()
        for payload in self._events.feed(data):
            self._has_events = True
            tokens = self.answer.take(payload, self._events.event)
            if tokens:
                self.chunk_s.append(now_s)
                self.chunk_tokens.append(tokens)

    def on_end(self, error: Disconnected | None) -> None:
        body = self._body.decode(errors="replace")
        if self._status != OK:
            self._finish(f"HTTP {self._status}: {body}")
            return
        with suppress(BadEvent):  # half an event, if the stream was cut off
            self._take(b"\n")  # the last line may lack its end
        fault = self.answer.fault()
        if body and not self._has_events:
            fault = f"no answer: {body}"
        elif error is not None and not self.answer.finished:
            fault = str(error)
        self._finish(fault)

    @property
    def retry_after_s(self) -> float | None:
        """The wait in seconds that the server requests when overloaded, else None."""
        return waiting_s(self._retry_after) if self._status == TOO_MANY else None

    def _check_idle(self) -> None:
        """Give up a stream that has become silent; otherwise check again later."""
        left_s = self._heard_s + self._patience_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_idle)
            return
        self._connection.abort()
        silent = f"timeout: silent for {self._patience_s:g} s"
        self._finish(self.answer.fault() if self.answer.finished else silent)

    def _finish(self, error: str | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)
