"""Test following KV events over real sockets: gaps are repaired, or else the index is cleared."""

import asyncio
import tracemalloc
from contextlib import asynccontextmanager
from itertools import pairwise

import zmq
import zmq.asyncio

from fairbench_emulator.kv_events import Publisher
from fairbench_load.kv_event_wire import BlockRemoved, EventBatch, encode, end_of_replay
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.kv_events import MAX_UNREADABLE, Subscriber
from tests.serve.live_router import until

NEVER_S = 3600.0
SOON_S = 0.01


class Log:
    """An index that records its calls."""

    def __init__(self):
        self.heard = []

    def apply(self, events):
        self.heard += [event.block_hashes[0] for event in events]

    def clear(self):
        self.heard.append("clear")


class Worker:
    """A PUB socket that sends given messages, and a ROUTER socket that replays ``kept``.

    ``asked`` are the replays that it has answered. Messages that are only kept were published
    before any subscription, so PUB dropped them silently.
    """

    def __init__(self):
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)  # a PUB socket that reports its subscribers
        self.router = self.context.socket(zmq.ROUTER)
        self.kept = {}  # number of a message -> its frames
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
            for number, frames in sorted(self.kept.items()):
                if number >= first:
                    await self.router.send_multipart((peer, b"", *frames))
            await self.router.send_multipart((peer, b"", *end_of_replay()))
            self.asked.append(first)

    def keep(self, *numbers, ts=0.0):
        self.kept |= {number: message(number, ts) for number in numbers}


def message(number, ts=0.0):
    """Return a message that removes block ``number``. The log thus shows applied messages."""
    return encode(number, EventBatch(ts, [BlockRemoved([number])]))


@asynccontextmanager
async def following(*, replay, kept=(), quiet_s=NEVER_S, on_follow=lambda follows: None):
    """Yield a worker that published ``kept`` before a subscriber connected, and the subscriber.

    With a replay socket, the worker has been asked once for ``kept`` when the block begins.
    """
    worker, log = Worker(), Log()
    worker.keep(*kept)
    subscriber = Subscriber(worker.address(replay), log, quiet_s=quiet_s, on_follow=on_follow)
    tasks = [asyncio.create_task(subscriber.run()), asyncio.create_task(worker.serve_replays())]
    try:
        await worker.pub.recv()  # the subscriber has connected
        if replay:
            await until(lambda: worker.asked and log.heard == list(kept))
        yield worker, subscriber, log
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.context.destroy(linger=0)


def follow(*numbers, last, replay=False, kept=()):
    """Send these messages to a subscriber that has asked for earlier ones and found nothing.

    Returns the log once ``last`` has arrived, the gaps and losses, and the replays asked for.
    """

    async def run():
        async with following(replay=replay) as (worker, subscriber, log):
            worker.keep(*kept)
            await worker.send(*numbers)
            await until(lambda: last in log.heard)
            return log.heard, (subscriber.gaps, subscriber.losses), worker.asked[1:]

    return asyncio.run(run())


def test_messages_in_sequence_are_applied_as_they_come():
    assert follow(0, 1, 2, last=2) == ([0, 1, 2], (0, 0), [])


def test_a_gap_is_filled_by_a_replay():
    found = follow(0, 1, 5, 6, last=6, replay=True, kept=range(8))
    assert found == ([0, 1, 2, 3, 4, 5, 6], (1, 0), [2])


def test_events_before_the_subscription_are_requested_immediately():
    async def run():
        async with following(replay=True, kept=range(5)) as (worker, subscriber, log):
            return log.heard, (subscriber.gaps, subscriber.losses), worker.asked

    assert asyncio.run(run()) == ([0, 1, 2, 3, 4], (1, 0), [0])


def test_events_missed_during_the_subscription_are_requested_later():
    async def run():
        async with following(replay=True, quiet_s=SOON_S) as (worker, subscriber, log):
            assert log.heard == []  # the first answer was empty
            worker.keep(0, 1)  # sent while no subscriber was connected
            await until(lambda: 1 in log.heard)
            worker.keep(2)
            await worker.send(2)
            worker.keep(3)  # lost, too, for example by a broken connection
            await until(lambda: 3 in log.heard)
            return log.heard, subscriber.losses

    assert asyncio.run(run()) == ([0, 1, 2, 3], 0)


def test_requested_events_are_applied_only_once():
    async def run():
        async with following(replay=True, kept=range(4)) as (worker, subscriber, log):
            await worker.send(2, 3, 4)  # slower than the answer to the request
            await until(lambda: 4 in log.heard)
            return log.heard, subscriber.losses

    assert asyncio.run(run()) == ([0, 1, 2, 3, 4], 0)


def test_events_too_old_to_replay_make_the_cache_unknown():
    async def run():
        async with following(replay=True, quiet_s=SOON_S) as (worker, subscriber, log):
            worker.keep(7, 8)
            await until(lambda: 8 in log.heard)
            return log.heard, (subscriber.gaps, subscriber.losses)

    assert asyncio.run(run()) == (["clear", 7, 8], (1, 1))


def test_a_worker_with_unknown_events_counts_as_restarted():
    """The worker's first messages reached nobody, so no sequence number reveals the restart."""

    async def run(kept):
        async with following(replay=True, kept=range(3), quiet_s=SOON_S) as (worker, _, log):
            worker.kept.clear()
            worker.keep(*kept, ts=1.0)
            await until(lambda: log.heard[-len(kept) :] == list(kept))
            return log.heard

    assert asyncio.run(run(range(2))) == [0, 1, 2, "clear", 0, 1]
    assert asyncio.run(run(range(5))) == [0, 1, 2, "clear", 0, 1, 2, 3, 4]


def test_a_silent_replay_socket_delays_nothing():
    async def run():
        worker, log = Worker(), Log()
        subscriber = Subscriber(worker.address(replay=True), log, quiet_s=SOON_S)
        task = asyncio.create_task(subscriber.run())
        await worker.pub.recv()
        await worker.send(0, 1, 2)
        await until(lambda: 2 in log.heard)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        worker.context.destroy(linger=0)
        return log.heard

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_gap_without_a_replay_socket_clears_everything():
    assert follow(0, 3, 4, last=4) == ([0, "clear", 3, 4], (1, 1), [])


def test_a_late_replay_clears_the_cache_and_is_used():
    found = follow(0, 5, last=5, replay=True, kept=[3, 4, 5])
    assert found == ([0, "clear", 3, 4, 5], (1, 1), [1])


def test_after_a_gap_in_a_replay_only_the_later_events_count():
    found = follow(0, 5, last=5, replay=True, kept=[1, 2, 4])
    assert found == ([0, 1, 2, "clear", 4, 5], (1, 1), [1])


def test_message_numbers_that_start_again_mean_a_restarted_worker():
    assert follow(0, 1, 2, 0, 1, last="clear")[0][:4] == [0, 1, 2, "clear"]


def test_an_invalid_event_clears_the_cache_and_following_continues():
    async def run():
        async with following(replay=False) as (worker, subscriber, log):
            await worker.send(0)
            await worker.pub.send_multipart([b"", b"short", b""])
            await worker.send(1)
            await until(lambda: 1 in log.heard)
            return log.heard, subscriber.losses

    assert asyncio.run(run()) == ([0, "clear", 1], 1)


GARBAGE = [b"", bytes(8), b"\xc1"]


def test_an_unreadable_worker_is_ignored_until_its_restart(caplog):
    told = []

    async def run():
        async with following(replay=False, on_follow=told.append) as (worker, subscriber, log):
            await worker.send(0)
            for _ in range(MAX_UNREADABLE):
                await worker.pub.send_multipart(GARBAGE)
            await until(lambda: told)
            assert (told, subscriber.follows) == ([False], False)
            assert (subscriber.unreadable, subscriber.losses) == (MAX_UNREADABLE, MAX_UNREADABLE)
            assert await worker.pub.recv() == b"\x00"  # the subscriber has unsubscribed
            subscriber.restart()
            assert (told, subscriber.follows) == ([False, True], True)
            assert await worker.pub.recv() == b"\x01"
            await worker.send(0, 1)
            await until(lambda: log.heard[-1:] == [1])
            return log.heard

    lost = ["clear"] * MAX_UNREADABLE
    assert asyncio.run(run()) == [0, *lost, "clear", 0, 1]
    said = [line for line in caplog.messages if "its events are ignored from now on" in line]
    assert len(said) == 1


def test_occasional_unreadable_messages_do_not_end_the_following():
    async def run():
        async with following(replay=False) as (worker, subscriber, log):
            for number in range(2 * MAX_UNREADABLE):
                await worker.send(number)
                await worker.pub.send_multipart(GARBAGE)
            await until(lambda: log.heard.count("clear") == 2 * MAX_UNREADABLE)
            return subscriber.follows, subscriber.unreadable

    assert asyncio.run(run()) == (True, 2 * MAX_UNREADABLE)


def test_a_worker_with_unreadable_replays_is_ignored():
    told = []

    async def run():
        async with following(replay=True, quiet_s=SOON_S, on_follow=told.append) as parts:
            worker, subscriber, _ = parts
            worker.kept[0] = GARBAGE
            await until(lambda: told)
            return subscriber.unreadable

    assert asyncio.run(run()) == MAX_UNREADABLE
    assert told == [False]


def test_a_message_lost_during_a_replay_is_missed_too():
    """A replay is requested for each of two gaps, from the end of the previous one.

    No message is applied twice.
    """
    heard, counts, asked = follow(0, 3, 4, 9, 10, last=10, replay=True, kept=range(20))
    assert (heard, counts, asked) == (list(range(11)), (2, 0), [1, 5])
    assert all(b == a + 1 for a, b in pairwise(heard))


def test_a_long_replay_arrives_completely():
    """The replay fills the sockets' buffers, beyond which a ROUTER socket drops messages."""
    block = 2**31  # five bytes per number

    async def run():
        publisher, log = Publisher("127.0.0.1", 0, 0), Log()
        for number in range(3000):
            publisher.publish([BlockRemoved([number] + 1500 * [block])])
        address = WorkerAddress("", publisher.endpoint, publisher.replay_endpoint)
        following = asyncio.create_task(Subscriber(address, log).run())
        await until(lambda: len(log.heard) >= 3000, timeout_s=60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await publisher.close()
        return log.heard

    assert asyncio.run(run()) == list(range(3000))


def test_a_replay_is_never_completely_in_memory():
    """Decoded at once, the replay would take 18 MB, and routers that asked often would grow."""

    async def run():
        publisher, log = Publisher("127.0.0.1", 0, 0), Log()
        for number in range(300):
            publisher.publish([BlockRemoved([number] + 1500 * [2**31])])
        address = WorkerAddress("", publisher.endpoint, publisher.replay_endpoint)
        tracemalloc.start()
        try:
            following = asyncio.create_task(Subscriber(address, log).run())
            await until(lambda: len(log.heard) >= 300, timeout_s=60)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await publisher.close()
        return peak_bytes

    assert asyncio.run(run()) < 6e6
