"""KV events: a reader that follows a worker's cache and reconstructs evicted prompts.

The reader requests missed events again. If missed events are unavailable, the reader clears its
index of cached blocks.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import inf

import zmq
import zmq.asyncio

from fairbench.core import Prompt
from fairbench_load.kv_event_wire import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    NumberedBatch,
    decode,
    replay_request,
)
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_load.token_pages import segments_of

# storage media whose blocks count as cached; blocks in host memory or on disk do not count
MEDIA = (None, "GPU")
Key = tuple[int | None, BlockHash]  # a block's group of layers, and the block's hash


# maximum number of tokens in a run of successive cache blocks. The router keeps the token ids of a
# run of cache blocks in memory while any of these blocks is cached.
RUN_TOKENS = 256


@dataclass(slots=True, eq=False)
class _Run:
    """A run of consecutive cache blocks that follows the first ``start`` tokens of ``parent``.

    ``ids`` holds the token ids of the consecutive blocks. Each entry of ``hashes`` is the hash of a
    block of ``block_size`` tokens.
    """

    parent: _Run | None
    start: int
    block_size: int
    ids: array[int] = field(default_factory=lambda: array("I"))
    hashes: list[BlockHash] = field(default_factory=list)

    def end_of(self, index: int) -> int:
        """Return the number of prompt tokens up to the end of block ``index``."""
        return self.start + min((index + 1) * self.block_size, len(self.ids))

    def may_grow(self, parent: BlockHash | None, block_size: int) -> bool:
        fits = len(self.ids) == block_size * len(self.hashes) < RUN_TOKENS
        return fits and self.block_size == block_size and self.hashes[-1] == parent

    def prefix(self, end: int) -> array[int]:
        parts: list[array[int]] = []
        run: _Run | None = self
        while run is not None:
            parts.append(run.ids[: end - run.start])
            end, run = run.start, run.parent
        ids = array("I")
        for part in reversed(parts):
            ids.extend(part)
        return ids


class BlockIndex:
    """The cached blocks of a worker according to its KV events, indexed by block hash.

    ``on_evict(prefix, tokens)`` is called when the worker evicts the last ``tokens`` tokens of a
    prefix, and ``on_clear()`` is called when the worker's cache becomes empty or unknown.
    """

    def __init__(
        self, on_evict: Callable[[Prompt, int], None], on_clear: Callable[[], None]
    ) -> None:
        self._on_evict = on_evict
        self._on_clear = on_clear
        self._runs: dict[Key, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def apply(self, events: Sequence[Event]) -> None:
        # Collect removed blocks of successive events, because SGLang sends an event per block.
        removed: list[Key] = []
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self._remove(removed)
                self.clear()
            elif event.medium not in MEDIA:
                continue
            elif isinstance(event, BlockRemoved):
                removed += [(event.group_idx, name) for name in event.block_hashes]
            else:
                self._remove(removed)
                self._store_blocks(event)
        self._remove(removed)

    def clear(self) -> None:
        """Delete all blocks, and report that the worker's cache is empty or unknown."""
        self._runs.clear()
        self._on_clear()

    def _store_blocks(self, event: BlockStored) -> None:
        parent, group, size = event.parent_block_hash, event.group_idx, event.block_size
        run, start = None, 0
        if size <= 0:
            return
        if parent is not None:
            run = self._runs.get((group, parent))
            if run is None:
                # If a block's parent was stored before the router subscribed to KV events, the
                # block's prompt is unknown.
                return
            start = run.end_of(run.hashes.index(parent))
        for index, name in enumerate(event.block_hashes):
            ids = event.token_ids[index * size : (index + 1) * size]
            if run is None or not run.may_grow(parent, size):
                run = _Run(run, start, size)
            run.ids.extend(ids)
            run.hashes.append(name)
            self._runs[group, name] = run
            parent, start = name, start + len(ids)

    def _remove(self, keys: list[Key]) -> None:
        """Remove the blocks with the given keys; report each evicted chain of blocks once."""
        removed: dict[_Run, set[BlockHash]] = {}
        for key in keys:
            if (run := self._runs.pop(key, None)) is not None:
                removed.setdefault(run, set()).add(key[1])
        keys.clear()
        ends: dict[_Run | None, tuple[int, int]] = {}
        for run, hashes in removed.items():
            gone = [index for index, name in enumerate(run.hashes) if name in hashes]
            ends[run] = run.end_of(gone[0] - 1), run.end_of(gone[-1])
        for run in sorted(removed, key=lambda run: run.start, reverse=True):
            if run not in ends:
                continue
            start, end = ends.pop(run)
            above = run
            while start == above.start and ends.get(above.parent, (0, -1))[1] == start:
                assert above.parent is not None
                above = above.parent
                start, _ = ends.pop(above)
            self._evict(run.prefix(end), start)

    def _evict(self, ids: array[int], start: int) -> None:
        pages = segments_of(ids)
        ends = [0, *accumulate(page.length for page in pages)]
        first = bisect_right(ends, start)
        if first < len(ends):
            self._on_evict(pages, len(ids) - ends[first - 1])


# A replay fails after this many seconds without a message.
SILENCE_S = 5.0
# number of replayed messages (a few milliseconds of work) after which other tasks may run
AT_A_TIME = 16


async def replayed(
    context: zmq.asyncio.Context, endpoint: str, first: int
) -> AsyncGenerator[NumberedBatch, None]:
    """Yield the messages that the worker has stored, from sequence number ``first`` on.

    Messages are decoded one by one, because all 10,000 stored messages would take 100 MB. Raises
    TimeoutError after ``SILENCE_S`` seconds without a message, and ValueError for an invalid
    message. A caller that stops early must close the generator.
    """
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        # The queue has no limit, because the worker's ROUTER socket discards messages if this
        # socket's queue is full.
        socket.set_hwm(0)
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


# maximum number of unread messages, equal to SGLang's limit for a slow subscriber
HIGH_WATER = 100_000
# seconds without a message after which the router requests missed messages
QUIET_S = 0.5
# number of consecutive invalid messages after which a worker's KV events are ignored
MAX_UNREADABLE = 3

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """An error for several consecutive messages of a worker that cannot be decoded."""


class Subscriber:
    """A reader that applies a worker's KV events to its ``BlockIndex``, in order and without gaps.

    A worker numbers its messages, and the reader requests missing messages from the worker's replay
    socket. The reader clears the index if the worker no longer stores the missing messages, or if
    message numbers start again after the worker restarts. ``gaps`` counts gaps in the message
    numbers, and ``losses`` counts how often a gap or an error cleared the index.

    A message that cannot be decoded clears the index and increases ``unreadable``. After
    ``MAX_UNREADABLE`` consecutive unreadable messages, the worker's events are ignored until the
    worker restarts. ``on_follow`` is called when the reader starts or stops ignoring events.

    Message numbers do not reveal the loss of the last message, or of a message before the
    subscription. The reader therefore requests a replay of messages at the start, and after
    ``quiet_s`` seconds without a message.
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
        # sequence number of the next expected message
        self._next = 0
        # timestamp of the last applied message, in seconds on the worker's clock
        self._last_s = -inf
        # timestamp of the last replayed message, whose original may still arrive later
        self._overtaken_s = -inf
        self._received = 0
        self._starts = 0  # number of known restarts of the worker
        self._asking = asyncio.Lock()
        self._replay_fails = False
        self._restarted = asyncio.Event()
        self._unreadable = 0  # number of consecutive invalid messages
        self.gaps = 0
        self.losses = 0
        self.unreadable = 0
        self.follows = True

    async def run(self) -> None:
        """Read KV events, also after restarts of the worker, until this task is cancelled."""
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
        """Begin again at sequence number 0 with an empty index, after a restart of the worker."""
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
        # Another task may have applied the missing messages while this task waited for the lock.
        if end <= self._next:
            return
        self.gaps += 1
        starts = self._starts

        def take(message: NumberedBatch) -> bool:
            if message.seq < end:
                self._take_replayed(message)
            return message.seq < end - 1

        if self._replay is not None:
            await self._ask_replay(context, self._replay, self._next, take)
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
        """Request missing messages, and again the last applied message to detect a restart.

        If a worker no longer has the last applied message, the worker must have restarted.
        """
        known, known_s, is_first = self._next - 1, self._last_s, True

        def take(message: NumberedBatch) -> bool:
            nonlocal is_first
            if message.seq == known and message.batch.ts != known_s:
                # The worker has restarted; the next call of ``_catch_up`` requests all its new
                # messages.
                self.restart()
            elif message.seq >= self._next:
                self.gaps += is_first
                is_first = False
                self._take_replayed(message)
                self._overtaken_s = message.batch.ts
            return True

        came = await self._ask_replay(context, replay, max(known, 0), take)
        if came == 0 and known >= 0 and (known, known_s) == (self._next - 1, self._last_s):
            self.restart()

    def _take_replayed(self, message: NumberedBatch) -> None:
        if message.seq > self._next:
            self._lose_until(message.seq)
        if message.seq == self._next:
            self._apply(message)

    async def _ask_replay(
        self,
        context: zmq.asyncio.Context,
        endpoint: str,
        first: int,
        take: Callable[[NumberedBatch], bool],
    ) -> int | None:
        """Ask the worker for all messages from number ``first`` on, and pass each to ``take``.

        The replay ends when ``take`` returns False. The result is the number of received messages,
        or None if the replay failed or the worker restarted meanwhile.
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
                # If no KV event was received yet, a replay that cannot be decoded counts as an
                # unreadable message.
                self._count_unreadable()
            # Log only the first of several consecutive failures.
            if not self._replay_fails:
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
        """Count an unreadable message; raise Unreadable after ``MAX_UNREADABLE`` in a row."""
        self.unreadable += 1
        self._unreadable += 1
        if self._unreadable >= MAX_UNREADABLE:
            raise Unreadable
