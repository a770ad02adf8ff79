"""Follows one worker's KV events; what was missed is asked for again, or all is forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import zmq
import zmq.asyncio

from fairbench.live.kv_events.blocks import BlockIndex
from fairbench.live.kv_events.wire import Message, decode, replay_request
from fairbench.live.servers.address import WorkerAddress

HIGH_WATER = 100_000  # messages waiting to be read, as many as SGLang keeps for a slow reader
REPLAY_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Subscriber:
    """Applies a worker's events to its ``BlockIndex`` in sequence, without a gap.

    Messages are numbered. Where one is missing, those between are fetched from the worker's replay
    socket; where that has them no more, the index is cleared, and so it is when the numbers start
    again, since then the worker has too. ``gaps`` and ``losses`` count both.
    """

    def __init__(self, address: WorkerAddress, index: BlockIndex) -> None:
        assert address.kv_events is not None
        self._events = address.kv_events
        self._replay = address.kv_replay
        self._index = index
        self._next = 0  # the sequence number due
        self.gaps = 0
        self.losses = 0

    async def run(self) -> None:
        """Follow until cancelled. The worker may come and go meanwhile."""
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.set_hwm(HIGH_WATER)
            socket.subscribe(b"")
            socket.connect(self._events)
            while True:
                try:
                    message = decode(await socket.recv_multipart())
                except ValueError as error:
                    log.warning("KV events of %s: %s", self._events, error)
                    self._lose()
                    continue
                if message is not None:
                    await self._receive(context, message)

    def restart(self) -> None:
        """The worker has started anew, with an empty cache."""
        self._next = 0
        self._index.clear()

    async def _receive(self, context: zmq.asyncio.Context, message: Message) -> None:
        if message.seq < self._next:
            self.restart()
        if message.seq > self._next:
            self.gaps += 1
            await self._repair(context, message.seq)
        self._apply(message)

    async def _repair(self, context: zmq.asyncio.Context, end: int) -> None:
        """Bring the index up to the message before ``end``."""
        missed = await self._fetch(context, self._replay, end) if self._replay else []
        if not missed or missed[0].seq > self._next:
            log.warning(
                "KV events of %s: %d to %d missed; its cache is taken to be empty",
                self._events,
                self._next,
                (missed[0].seq if missed else end) - 1,
            )
            self._lose()
        for message in missed:
            self._apply(message)

    async def _fetch(self, context: zmq.asyncio.Context, endpoint: str, end: int) -> list[Message]:
        """What the worker still has of the messages that are due, before ``end``."""
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.set_hwm(0)  # a worker's ROUTER drops what we do not take at once
            socket.connect(endpoint)
            messages: list[Message] = []
            try:
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await socket.send_multipart(replay_request(self._next))
                    while (message := decode((await socket.recv_multipart())[1:])) is not None:
                        messages.append(message)
            except (TimeoutError, ValueError) as error:
                log.warning("replay of KV events from %s: %s", endpoint, str(error) or "timed out")
                return []
        return list(_unbroken(messages, end))

    def _apply(self, message: Message) -> None:
        self._index.apply(message.batch.events)
        self._next = message.seq + 1

    def _lose(self) -> None:
        self.losses += 1
        self._index.clear()


def _unbroken(messages: list[Message], end: int) -> Iterator[Message]:
    """The messages before ``end``, if they reach up to it without a gap."""
    wanted = [message for message in messages if message.seq < end]
    if wanted and [message.seq for message in wanted] == list(range(wanted[0].seq, end)):
        yield from wanted
