"""A replay: the messages that a worker still has, requested and read one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count

import zmq
import zmq.asyncio

from fairbench.live.kv_events.wire import NumberedBatch, decode, replay_request

SILENCE_S = 5.0  # without a message, after which a worker is taken to send none
AT_A_TIME = 16  # messages that are read before others have their turn: a few milliseconds


async def replayed(
    context: zmq.asyncio.Context, endpoint: str, first: int
) -> AsyncGenerator[NumberedBatch, None]:
    """Yield the worker's stored messages from number ``first`` on, in order.

    Messages come one by one, because the 10,000 that are kept take 100 MB once decoded. Raises
    TimeoutError after a long silence, ValueError for an unreadable message. A reader that stops
    early must close the generator.

    Args:
        context: ZeroMQ context in which the socket is opened.
        endpoint: Address of the worker's replay socket.
        first: Number of the first message wanted.
    """
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(0)  # a worker's ROUTER drops what we do not take at once
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
