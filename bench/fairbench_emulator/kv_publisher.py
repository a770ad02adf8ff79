"""Publishes a worker's KV events over ZMQ, and repeats recent events on request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from fairbench.errors import UsageError
from fairbench.live.kv_event_wire import SEQ_BYTES, Event, EventBatch, encode, end_of_replay

# number of messages that a slow subscriber may be behind before it loses some
HIGH_WATER_MARK = 100_000
KEPT_MESSAGES = 10_000  # messages kept for replay


class Publisher:
    """A PUB socket, and a ROUTER socket for replays. Create and close it in the event loop.

    Port 0 is any free port. Raises UsageError if a port cannot be had.
    """

    def __init__(self, host: str, port: int, replay_port: int) -> None:
        self._contexts: tuple[zmq.Context[Any], ...] = zmq.Context(), zmq.asyncio.Context()
        # A plain socket drops a message that cannot be sent immediately, and never waits.
        self._pub: zmq.Socket[bytes] = self._contexts[0].socket(zmq.PUB)
        self._router: zmq.asyncio.Socket = self._contexts[1].socket(zmq.ROUTER)
        self._next_seq = 0
        self._kept: deque[tuple[int, tuple[bytes, ...]]] = deque(maxlen=KEPT_MESSAGES)
        try:
            self._pub.set_hwm(HIGH_WATER_MARK)
            self._router.set_hwm(0)  # a ROUTER would drop messages of a replay beyond its limit
            self.endpoint = _bind_socket(self._pub, host, port, "--kv-events-port")
            self.replay_endpoint = _bind_socket(self._router, host, replay_port, "--kv-replay-port")
        except UsageError:
            self._destroy()
            raise
        self._replays = asyncio.get_running_loop().create_task(self._serve_replays())

    def publish(self, events: list[Event]) -> None:
        seq = self._next_seq
        self._next_seq += 1
        frames = encode(seq, EventBatch(time.time(), events))
        self._kept.append((seq, frames))
        self._pub.send_multipart(frames)

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != SEQ_BYTES:
                continue  # the client cannot understand an answer
            peer, _, start = frames
            first = int.from_bytes(start, "big")
            for seq, message in list(self._kept):
                if seq >= first:
                    await self._router.send_multipart((peer, b"", *message))
            await self._router.send_multipart((peer, b"", *end_of_replay()))

    async def close(self) -> None:
        self._replays.cancel()
        with suppress(asyncio.CancelledError):
            await self._replays
        self._destroy()

    def _destroy(self) -> None:
        for context in self._contexts:
            context.destroy(linger=0)


def _bind_socket(socket: zmq.Socket[Any], host: str, port: int, flag: str) -> str:
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        raise UsageError(f"{flag} {port}: {error.strerror}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
