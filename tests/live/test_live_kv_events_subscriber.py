"""Following KV events over real sockets: gaps are repaired, or all is forgotten."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import zmq
import zmq.asyncio
from live_router import POLL_S, until

from fairbench.live.kv_events.publisher import Publisher
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.kv_events.wire import BlockRemoved, EventBatch, encode, end_of_replay
from fairbench.live.servers.address import WorkerAddress


class Log:
    """An index that writes down what it is told."""

    def __init__(self):
        self.heard = []

    def apply(self, events):
        self.heard += [event.block_hashes[0] for event in events]

    def clear(self):
        self.heard.append("clear")


class Worker:
    """A PUB socket that sends what it is told to, and a ROUTER that replays ``kept``."""

    def __init__(self):
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)  # a PUB that says who subscribes
        self.router = self.context.socket(zmq.ROUTER)
        self.kept = {}
        self.asked = []
        self.pub.bind("tcp://127.0.0.1:*")
        self.router.bind("tcp://127.0.0.1:*")

    def address(self, replay):
        kv, again = (s.getsockopt_string(zmq.LAST_ENDPOINT) for s in (self.pub, self.router))
        return WorkerAddress("http://127.0.0.1:1", kv, again if replay else None)

    async def send(self, *numbers):
        for number in numbers:
            await self.pub.send_multipart(message(number))

    async def serve_replays(self):
        while True:
            peer, _, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number in sorted(self.kept):
                if number >= first:
                    await self.router.send_multipart((peer, b"", *message(number)))
            await self.router.send_multipart((peer, b"", *end_of_replay()))


def message(number):
    """Message ``number`` removes block ``number``, so that the log shows what was applied."""
    return encode(number, EventBatch(0.0, [BlockRemoved([number])]))


@asynccontextmanager
async def following(*, replay, kept=()):
    worker, log = Worker(), Log()
    worker.kept = set(kept)
    subscriber = Subscriber(worker.address(replay), log)
    tasks = [asyncio.create_task(subscriber.run()), asyncio.create_task(worker.serve_replays())]
    try:
        await worker.pub.recv()  # the subscription has come
        yield worker, subscriber, log
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.context.destroy(linger=0)


def follow(*numbers, last, replay=False, kept=()):
    """Send these messages; returns the log once ``last`` has come, and the subscriber."""

    async def run():
        async with following(replay=replay, kept=kept) as (worker, subscriber, log):
            await worker.send(*numbers)
            await until(lambda: last in log.heard)
            return log.heard, (subscriber.gaps, subscriber.losses), worker.asked

    return asyncio.run(run())


def test_messages_in_sequence_are_applied_as_they_come():
    assert follow(0, 1, 2, last=2) == ([0, 1, 2], (0, 0), [])


def test_a_gap_is_filled_by_a_replay():
    found = follow(0, 1, 5, 6, last=6, replay=True, kept=range(8))
    assert found == ([0, 1, 2, 3, 4, 5, 6], (1, 0), [2])


def test_a_late_subscriber_gets_what_was_before():
    found = follow(3, 4, last=4, replay=True, kept=range(4))
    assert found == ([0, 1, 2, 3, 4], (1, 0), [0])


def test_a_gap_without_a_replay_socket_clears_everything():
    assert follow(0, 3, 4, last=4) == ([0, "clear", 3, 4], (1, 1), [])


def test_a_replay_that_begins_too_late_clears_what_was_there_and_is_used():
    found = follow(0, 5, last=5, replay=True, kept=[3, 4, 5])
    assert found == ([0, "clear", 3, 4, 5], (1, 1), [1])


def test_a_replay_with_a_hole_is_not_used():
    found = follow(0, 5, last=5, replay=True, kept=[1, 2, 4])
    assert found == ([0, "clear", 5], (1, 1), [1])


def test_numbers_that_start_again_are_a_worker_that_did():
    assert follow(0, 1, 2, 0, 1, last="clear")[0][:4] == [0, 1, 2, "clear"]


def test_what_is_no_event_clears_everything_and_the_rest_goes_on():
    async def run():
        async with following(replay=False) as (worker, subscriber, log):
            await worker.send(0)
            await worker.pub.send_multipart([b"", b"short", b""])
            await worker.send(1)
            await until(lambda: 1 in log.heard)
            return log.heard, subscriber.losses

    assert asyncio.run(run()) == ([0, "clear", 1], 1)


def test_a_message_lost_while_its_like_are_being_replayed_is_missed_too():
    """Two gaps: each is asked for from where the last one ended, and nothing is applied twice."""
    heard, counts, asked = follow(0, 3, 4, 9, 10, last=10, replay=True, kept=range(20))
    assert (heard, counts, asked) == (list(range(11)), (2, 0), [1, 5])
    assert all(b == a + 1 for a, b in pairwise(heard))


def test_a_long_replay_comes_whole():
    """So long that it fills the sockets' buffers, beyond which a ROUTER drops messages."""
    block = 2**31  # five bytes a number

    async def run():
        publisher, log = Publisher("127.0.0.1", 0, 0), Log()
        for number in range(3000):
            publisher.publish([BlockRemoved([number] + 1500 * [block])])
        address = WorkerAddress("", publisher.endpoint, publisher.replay_endpoint)
        following = asyncio.create_task(Subscriber(address, log).run())
        async with asyncio.timeout(60):
            while not log.heard:  # until it has subscribed, nobody hears
                publisher.publish([BlockRemoved([3000])])
                await asyncio.sleep(POLL_S)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await publisher.close()
        return log.heard

    assert asyncio.run(run())[:3001] == list(range(3001))
