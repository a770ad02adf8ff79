"""KV events of an emulated worker: a KV cache that reports its blocks, and a ZMQ publisher."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import zmq
import zmq.asyncio

from fairbench.core import Prompt
from fairbench.engine.kv_cache import KVCache, KVNode
from fairbench.errors import UsageError
from fairbench.schedulers.prefix_tree import Place
from fairbench_emulator.tokens import TokenStreams
from fairbench_load import kv_event_wire

BLOCK_TOKENS = 8  # tokens per block in KV events
MEDIUM = "GPU"  # kind of memory that KV events name


class PublishingCache(KVCache):
    """A prefix cache that collects events about its blocks (KV events).

    ``publish`` passes new events to the function ``send`` in order.

    A block has 8 tokens, and its name is a hash of all tokens up to its end. The cache matches
    prefixes token by token. An incomplete last block is cached but not reported, because events
    name only complete blocks.
    """

    def __init__(
        self,
        capacity: int,
        streams: TokenStreams,
        send: Callable[[list[kv_event_wire.Event]], None] | None,
    ) -> None:
        super().__init__(capacity)
        self._streams = streams
        self._send = send
        # ``_hashes`` holds the hashes of the blocks that end in each tree node.
        self._hashes: dict[KVNode, list[int]] = {}
        self._events: list[kv_event_wire.Event] = []

    def publish(self) -> None:
        if self._events and self._send is not None:
            self._send(self._events)
            self._events = []

    def clear(self) -> None:
        """Evict all blocks, none of which may be locked by a request."""
        self._hashes.clear()
        self.evict(self.capacity)
        if self._send is not None:
            self._events.append(kv_event_wire.AllBlocksCleared())
            self.publish()

    def extend(self, node: KVNode, prompt: Prompt, place: Place, depth: int) -> KVNode:
        child = super().extend(node, prompt, place, depth)
        first, last = node.depth // BLOCK_TOKENS, depth // BLOCK_TOKENS
        if self._send is None or first == last:
            return child
        ids = self._streams.ids_of(prompt, first * BLOCK_TOKENS, last * BLOCK_TOKENS)
        # The parent of the new blocks is the last complete block that ends at ``node`` or above.
        above: KVNode | None = node
        while above is not None and not self._hashes.get(above):
            above = above.parent
        parent = None if above is None else self._hashes[above][-1]
        hashes = self._hashes[child] = _chain(parent, ids)
        self._events.append(
            kv_event_wire.BlockStored(hashes, parent, ids, BLOCK_TOKENS, None, MEDIUM)
        )
        return child

    def on_split(self, upper: KVNode, lower: KVNode) -> None:
        super().on_split(upper, lower)
        if (hashes := self._hashes.get(lower)) is not None:
            start = upper.depth - upper.length
            blocks = upper.depth // BLOCK_TOKENS - start // BLOCK_TOKENS
            self._hashes[upper], self._hashes[lower] = hashes[:blocks], hashes[blocks:]

    def remove(self, leaf: KVNode) -> KVNode:
        if hashes := self._hashes.pop(leaf, None):
            self._events.append(kv_event_wire.BlockRemoved(hashes, MEDIUM))
        return super().remove(leaf)


def _chain(parent: int | None, ids: list[int]) -> list[int]:
    """Return the hash of each complete block, computed from its tokens and the previous hash."""
    data = memoryview(array("I", ids)).cast("B")
    size = len(data) // len(ids) * BLOCK_TOKENS
    hashes = []
    chain = b"" if parent is None else parent.to_bytes(8, "little", signed=True)
    for start in range(0, len(data), size):
        chain = blake2b(data[start : start + size], digest_size=8, key=chain).digest()
        hashes.append(int.from_bytes(chain, "little", signed=True))
    return hashes


# maximum number of messages that ZMQ queues for a slow subscriber; further messages are discarded
HIGH_WATER_MARK = 100_000
KEPT_MESSAGES = 10_000  # number of recent messages that a subscriber can request again


class Publisher:
    """A publisher with a ZMQ PUB socket for KV events and a ROUTER socket for replays.

    All methods must be called from the event loop's thread. Port 0 means any free port. Raises
    UsageError if a port is in use.
    """

    def __init__(self, host: str, port: int, replay_port: int) -> None:
        self._contexts: tuple[zmq.Context[Any], ...] = zmq.Context(), zmq.asyncio.Context()
        # A plain ZMQ socket discards a message that it cannot send immediately; an asyncio socket
        # waits and delays the emulator.
        self._pub: zmq.Socket[bytes] = self._contexts[0].socket(zmq.PUB)
        self._router: zmq.asyncio.Socket = self._contexts[1].socket(zmq.ROUTER)
        self._next_seq = 0
        self._kept: deque[tuple[int, tuple[bytes, ...]]] = deque(maxlen=KEPT_MESSAGES)
        try:
            self._pub.set_hwm(HIGH_WATER_MARK)
            # The ROUTER socket has no queue limit, because a limit would discard messages of long
            # replays.
            self._router.set_hwm(0)
            self.endpoint = _bind_socket(self._pub, host, port, "--kv-events-port")
            self.replay_endpoint = _bind_socket(self._router, host, replay_port, "--kv-replay-port")
        except UsageError:
            self._destroy()
            raise
        self._replays = asyncio.get_running_loop().create_task(self._serve_replays())

    def publish(self, events: list[kv_event_wire.Event]) -> None:
        seq = self._next_seq
        self._next_seq += 1
        frames = kv_event_wire.encode(seq, kv_event_wire.EventBatch(time.time(), events))
        self._kept.append((seq, frames))
        self._pub.send_multipart(frames)

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != kv_event_wire.SEQ_BYTES:
                continue  # a malformed request gets no answer
            peer, _, start = frames
            first = int.from_bytes(start, "big")
            for seq, message in list(self._kept):
                if seq >= first:
                    await self._router.send_multipart((peer, b"", *message))
            await self._router.send_multipart((peer, b"", *kv_event_wire.end_of_replay()))

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
