"""Follows one worker's KV events; missed events are requested again, or the cache is forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from math import inf

import zmq
import zmq.asyncio

from fairbench.live.kv_event_wire import NumberedBatch, decode, replay_request
from fairbench.live.processes.addresses import WorkerAddress
from fairbench_serve.kv_events.blocks import BlockIndex

SILENCE_S = 5.0  # seconds of silence after which the worker is assumed to send no more
AT_A_TIME = 16  # messages read in one turn, which takes a few milliseconds


async def replayed(
    context: zmq.asyncio.Context, endpoint: str, first: int
) -> AsyncGenerator[NumberedBatch, None]:
    """Yield the worker's stored messages from number ``first`` on, in order.

    Messages are yielded one by one, because the 10,000 stored messages take 100 MB once decoded.
    Raises TimeoutError after a long silence, ValueError for an unreadable message. A reader that
    stops early must close the generator.
    """
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(0)  # a worker's ROUTER drops messages that are not read at once
        socket.connect(endpoint)
        await socket.send_multipart(replay_request(first))
        for number in count(1):
            async with asyncio.timeout(SILENCE_S):
                frames = await socket.recv_multipart()
            if (message := decode(frames[1:])) is None:
                return
            yield message
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)


HIGH_WATER = 100_000  # messages waiting to be read, as many as SGLang keeps for a slow reader
QUIET_S = 0.5  # seconds without a message after which the worker is asked whether it sent one
MAX_UNREADABLE = 3  # unreadable messages in succession after which a worker's events are ignored

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """Several messages in succession cannot be decoded, because the worker uses another format."""


class Subscriber:
    """Applies a worker's events to its ``BlockIndex`` in sequence, without gaps.

    Messages are numbered. Missing messages are fetched from the worker's replay socket; if it no
    longer has them, the index is cleared. The index is also cleared when the numbers restart,
    because the worker has then restarted, too. ``gaps`` counts missing messages, ``losses`` the
    times that the index was cleared.

    A message that cannot be decoded (counted in ``unreadable``) also clears the index. After
    ``MAX_UNREADABLE`` such messages in succession the worker's events are ignored until it
    restarts; ``on_follow`` is called at both times.

    A lost last message leaves no gap, and messages before the subscription takes effect are lost
    unnoticed. The replay socket is therefore asked at the start, and again after each silence of
    ``quiet_s``.
    """

    def __init__(
        self,
        address: WorkerAddress,
        index: BlockIndex,
        *,
        quiet_s: float = QUIET_S,
        on_follow: Callable[[bool], None] = lambda follows: None,
    ) -> None:
        assert address.kv_events is not None
        self._events = address.kv_events
        self._replay = address.kv_replay
        self._index = index
        self._quiet_s = quiet_s
        self._on_follow = on_follow
        self._next = 0  # the next expected sequence number
        self._last_s = -inf  # the worker's time of the message before the next
        # messages up to this time were requested and received before they come
        self._overtaken_s = -inf
        self._received = 0
        self._starts = 0  # starts of the worker that we know of
        self._asking = asyncio.Lock()
        self._replay_fails = False
        self._restarted = asyncio.Event()
        self._unreadable = 0  # unreadable messages in succession
        self.gaps = 0
        self.losses = 0
        self.unreadable = 0
        self.follows = True

    async def run(self) -> None:
        """Follow the events until cancelled. The worker may stop and restart meanwhile."""
        while True:
            try:
                await self._follow()
            except* Unreadable:
                self._give_up()
            await self._restarted.wait()

    async def _follow(self) -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.set_hwm(HIGH_WATER)
            socket.subscribe(b"")
            socket.connect(self._events)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(context, socket))
                if self._replay is not None:
                    group.create_task(self._ask_when_quiet(context, self._replay))

    def restart(self) -> None:
        """Start again after the worker restarted with an empty cache."""
        self._next = 0
        self._last_s = self._overtaken_s = -inf
        self._starts += 1
        self._index.clear()
        if not self.follows:
            self.follows, self._unreadable = True, 0
            self._on_follow(True)
            self._restarted.set()

    def _give_up(self) -> None:
        log.warning(
            "KV events of %s: %d messages in succession could not be read; its events "
            "are ignored from now on, and its cache is estimated from the requests sent "
            "to it",
            self._events,
            self._unreadable,
        )
        self.follows = False
        self._restarted.clear()
        self._on_follow(False)

    async def _listen(self, context: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> None:
        while True:
            try:
                message = decode(await socket.recv_multipart())
            except ValueError as error:
                log.warning("KV events of %s: %s", self._events, error)
                self._lose()
                self._count_unreadable()
                continue
            if message is not None:
                self._received += 1
                self._unreadable = 0
                await self._receive(context, message)

    async def _receive(self, context: zmq.asyncio.Context, message: NumberedBatch) -> None:
        if message.seq < self._next and message.batch.ts > self._overtaken_s:
            self.restart()
        if message.seq > self._next:
            async with self._asking:
                await self._repair(context, message.seq)
        if message.seq == self._next:
            self._apply(message)
            self._overtaken_s = -inf

    async def _repair(self, context: zmq.asyncio.Context, end: int) -> None:
        if end <= self._next:  # these were requested before
            return
        self.gaps += 1
        starts = self._starts

        def take(message: NumberedBatch) -> bool:
            if message.seq < end:
                self._take(message)
            return message.seq < end - 1

        if self._replay is not None:
            await self._ask(context, self._replay, self._next, take)
        if starts == self._starts and self._next < end:
            self._lose_until(end)

    async def _ask_when_quiet(self, context: zmq.asyncio.Context, replay: str) -> None:
        while True:
            async with self._asking:
                await self._catch_up(context, replay)
            received = -1
            while received != self._received:
                received = self._received
                await asyncio.sleep(self._quiet_s)

    async def _catch_up(self, context: zmq.asyncio.Context, replay: str) -> None:
        """Fetch the messages that have not arrived.

        The last received message is requested, too: a worker that does not know it has restarted.
        """
        known, known_s, is_first = self._next - 1, self._last_s, True

        def take(message: NumberedBatch) -> bool:
            nonlocal is_first
            if message.seq == known and message.batch.ts != known_s:
                self.restart()  # later messages are requested next time
            elif message.seq >= self._next:
                self.gaps += is_first
                is_first = False
                self._take(message)
                self._overtaken_s = message.batch.ts
            return True

        came = await self._ask(context, replay, max(known, 0), take)
        if came == 0 and known >= 0 and (known, known_s) == (self._next - 1, self._last_s):
            self.restart()

    def _take(self, message: NumberedBatch) -> None:
        if message.seq > self._next:
            self._lose_until(message.seq)
        if message.seq == self._next:
            self._apply(message)

    async def _ask(
        self,
        context: zmq.asyncio.Context,
        endpoint: str,
        first: int,
        take: Callable[[NumberedBatch], bool],
    ) -> int | None:
        """Request messages from ``first`` on; ``take`` gets each and returns whether to continue.

        Returns the number of received messages; None if it is unknown, or if the worker has
        restarted meanwhile.
        """
        starts, came = self._starts, 0
        try:
            async with aclosing(replayed(context, endpoint, first)) as messages:
                async for message in messages:
                    came += 1
                    if starts != self._starts or not take(message):
                        break
        except (TimeoutError, ValueError) as error:
            if isinstance(error, ValueError) and not self._received:
                self._count_unreadable()  # each missed message is requested once
            if not self._replay_fails:  # logged once, not twice a second
                reason = str(error) or "timed out"
                log.warning("replay of KV events from %s: %s", endpoint, reason)
            self._replay_fails = True
            return None
        self._replay_fails = False
        return came if starts == self._starts else None

    def _apply(self, message: NumberedBatch) -> None:
        self._index.apply(message.batch.events)
        self._next = message.seq + 1
        self._last_s = message.batch.ts

    def _lose_until(self, first: int) -> None:
        log.warning(
            "KV events of %s: messages %d to %d are missing; its cache is treated as empty",
            self._events,
            self._next,
            first - 1,
        )
        self._lose()
        self._next = first

    def _lose(self) -> None:
        self.losses += 1
        self._index.clear()

    def _count_unreadable(self) -> None:
        """Count an unreadable message. Raises Unreadable after too many in succession."""
        self.unreadable += 1
        self._unreadable += 1
        if self._unreadable >= MAX_UNREADABLE:
            raise Unreadable
