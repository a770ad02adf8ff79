"""Test the memory that long bodies may take in the router."""

import asyncio
import json
from pathlib import Path

import pytest

from fairbench.live.http_server import LONG_BODY_BYTES
from fairbench.live.json_errors import Problem
from fairbench.live.router.bodies import BodyMemory, usual_bytes
from tests.live.live_router import GENERATE, cluster, until

MIB = 2**20
CLIENT = "x-fairbench-client"


def test_no_client_gets_the_whole_body_memory():
    memory = BodyMemory(16 * MIB)
    with memory.lease("flood") as first, memory.lease("flood") as second:
        first.grow(6 * MIB)
        second.grow(2 * MIB)  # 8 of 16 MiB, and 8 are free
        with pytest.raises(Problem) as raised:
            second.grow(2 * MIB + 1)
        assert (raised.value.status, raised.value.retry_after_s) == (429, 5)
        with memory.lease("ann") as other:
            other.grow(4 * MIB)
            with pytest.raises(
                Problem, match="MiB of memory, more than the limit allows; send fewer at a time"
            ):
                other.grow(4 * MIB + 1)
            with memory.lease("bob") as third:
                third.grow(2 * MIB)
    with memory.lease("ann") as again:
        again.grow(8 * MIB)


def test_short_bodies_are_not_counted():
    memory = BodyMemory(LONG_BODY_BYTES)
    with memory.lease("ann") as first, memory.lease("ann") as second:
        first.grow(LONG_BODY_BYTES)
        second.grow(LONG_BODY_BYTES)
        with pytest.raises(Problem):
            first.grow(LONG_BODY_BYTES + 1)
        assert (first.taken, second.taken) == (0, 0)


def test_the_default_body_memory_is_a_quarter_of_the_machines():
    name, kib, *_ = Path("/proc/meminfo").read_text().split()
    assert name == "MemTotal:"
    assert usual_bytes() == pytest.approx(int(kib) * 1024 / 4, rel=0.01)


def body(mib):
    text = {"text": "a" * int(mib * MIB), "sampling_params": {"max_new_tokens": 3}}
    return json.dumps(text).encode()


def test_a_flood_of_long_bodies_is_refused_and_other_bodies_are_not():
    """The limit holds while bodies are read, whatever length they announce."""

    async def test():
        router = {"max_bodies_bytes": 2 * MIB}
        async with cluster(1, router=router, held_at=0) as (under_test, [worker]):

            async def ask(client, mib, pieces=None):
                data = body(mib) if pieces is None else pieces
                named = {CLIENT: client}
                url = under_test.url + GENERATE
                async with under_test.session.post(url, data=data, headers=named) as answer:
                    await answer.read()
                    return answer.status

            async def endless():
                while True:
                    yield b" " * LONG_BODY_BYTES

            held = [asyncio.create_task(ask("flood", 0.4)) for _ in range(2)]
            await until(lambda: len(worker.seen) == 2)
            assert await ask("flood", 0.4) == 429
            assert await ask("flood", 0, endless()) == 429
            held += [asyncio.create_task(ask(*one)) for one in (("flood", 0.1), ("ann", 0.4))]
            await until(lambda: len(worker.seen) == 4)
            worker.released.set()
            assert await asyncio.gather(*held) == [200] * 4
            assert await ask("flood", 0.9) == 200

    asyncio.run(test())
