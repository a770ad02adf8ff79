"""Test that KV events, applied in order, give exactly the cached whole blocks."""

import asyncio

import numpy as np
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.prefix_tree import path
from fairbench_emulator.kv_events import BLOCK_TOKENS, PublishingCache
from fairbench_emulator.tokens import TokenStreams
from fairbench_load.kv_event_wire import AllBlocksCleared, BlockStored, decode, replay_request
from tests.emulator.live_emulator import generate, running


class Mirror:
    """A subscriber's view of the cache: block hash -> all tokens up to the block's end."""

    def __init__(self):
        self.blocks = {}

    def apply(self, events):
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                self._store(event)
            else:
                for name in event.block_hashes:
                    del self.blocks[name]

    def _store(self, event):
        parent = event.parent_block_hash
        prefix = () if parent is None else self.blocks[parent]
        size = event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        for number, name in enumerate(event.block_hashes):
            prefix += tuple(event.token_ids[number * size : (number + 1) * size])
            assert name not in self.blocks
            self.blocks[name] = prefix


def cached_blocks(cache, streams):
    """Return every cached prefix of whole blocks, by a walk over the tree."""
    found = set()
    for node in cache.nodes():
        ids = tuple(streams.ids_of(path(node), 0, node.depth))
        first = (node.depth - node.length) // BLOCK_TOKENS + 1
        for block in range(first, node.depth // BLOCK_TOKENS + 1):
            found.add(ids[: block * BLOCK_TOKENS])
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "evict", "clear"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=5),
        st.integers(1, 60),
    ),
    max_size=25,
)


@given(STEPS)
def test_a_subscriber_knows_every_whole_block_that_is_cached_and_no_other(steps):
    streams, mirror = TokenStreams(), Mirror()
    cache = PublishingCache(10_000, streams, mirror.apply)
    for action, branches, tail in steps:
        if action == "store":  # prompts of many equal tokens, with branches between them
            tokens = [token for branch in branches for token in [branch] * 25] + [2] * tail
            prompt, _ = streams.prompt_of(np.array(tokens, np.int32))
            cache.allocate(len(tokens))
            _, cached = cache.insert(cache.root, prompt, (0, 0), len(tokens))
            cache.release(cached)
        elif action == "evict":
            cache.evict(tail)
        else:
            cache.clear()
        cache.publish()
        assert set(mirror.blocks.values()) == cached_blocks(cache, streams)


def events_of(messages):
    return [event for message in messages for event in message.batch.events]


async def messages(socket, count):
    """Return the next messages that hold ``count`` events, each with its sequence number.

    On a busy machine, a late emulator reports several iterations in one message.
    """
    found = []
    async with asyncio.timeout(120):
        while len(events_of(found)) < count:
            message = decode(await socket.recv_multipart())
            found += [message] if message.batch.events else []
    return found


def test_events_are_published_in_order_and_repeated_on_request():
    async def main():
        loop, context = asyncio.get_running_loop(), zmq.asyncio.Context()
        try:
            async with running(loop, kv_events_port=0) as (emulator, session):
                socket = context.socket(zmq.SUB)
                socket.subscribe(b"")
                socket.connect(emulator.publisher.endpoint)
                replay = context.socket(zmq.DEALER)
                replay.connect(emulator.publisher.replay_endpoint)
                while not await socket.poll(10):  # a subscription takes effect after a delay
                    emulator.publisher.publish([])
                await generate(session, range(100), new=30)
                live = await messages(socket, 2)
                async with session.post("/flush_cache") as answer:
                    assert answer.status == 200
                live += await messages(socket, 1)
                await replay.send_multipart(replay_request(live[1].seq))
                again = []
                while True:
                    empty, *frames = await asyncio.wait_for(replay.recv_multipart(), 10)
                    assert empty == b""
                    if (message := decode(frames)) is None:
                        return live, again
                    again.append(message)
        finally:
            context.destroy(linger=0)

    live, again = asyncio.run(main())
    first = live[0].seq
    assert [message.seq for message in live] == list(range(first, first + len(live)))
    prompt, output, cleared = events_of(live)
    assert prompt.token_ids == list(range(96))
    assert prompt.parent_block_hash is None
    assert output.parent_block_hash == prompt.block_hashes[-1]
    assert output.token_ids[:4] == [96, 97, 98, 99]  # the block in which the prompt ended
    assert isinstance(cleared, AllBlocksCleared)
    assert again == live[1:]
