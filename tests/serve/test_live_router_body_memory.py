"""Test the memory that long bodies may take in the router."""

import asyncio
import gzip
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairbench_load.http_server import LONG_BODY_BYTES, Problem
from fairbench_serve.bodies import ARRIVING_BYTES, BodyMemory, usual_bytes
from tests.serve.live_router import GENERATE, cluster, until

MIB = 2**20
CLIENT = "x-fairbench-client"


def test_no_client_gets_the_whole_body_memory():
    memory = BodyMemory(16 * MIB)
    with memory.lease("flood") as first, memory.lease("flood") as second:
        first.grow_to(6 * MIB)
        second.grow_to(2 * MIB)  # 8 of 16 MiB are used, and 8 are free
        with pytest.raises(Problem) as raised:
            second.grow_to(2 * MIB + 1)
        assert (raised.value.status, raised.value.retry_after_s) == (429, 5)
        with memory.lease("ann") as other:
            other.grow_to(4 * MIB)
            with pytest.raises(
                Problem,
                match="MiB of memory, more than the limit allows; send fewer requests at a time",
            ):
                other.grow_to(4 * MIB + 1)
            with memory.lease("bob") as third:
                third.grow_to(2 * MIB)
    with memory.lease("ann") as again:
        again.grow_to(8 * MIB)


def test_short_bodies_count_from_their_first_byte_to_the_end_of_their_request():
    memory = BodyMemory(MIB)
    with memory.lease("ann") as first, memory.lease("ann") as second:
        first.grow_to(MIB // 4)
        second.grow_to(MIB // 4)
        second.arrived()
        with pytest.raises(Problem):
            first.grow_to(MIB // 4 + 1)
        with memory.lease("bob") as other:
            other.grow_to(MIB // 4)
    with memory.lease("ann") as again:
        again.grow_to(MIB // 2)


def test_arriving_bodies_are_counted_by_client_and_in_all():
    memory = BodyMemory(16 * ARRIVING_BYTES)
    with ExitStack() as flood:
        leases = [flood.enter_context(memory.lease("flood")) for _ in range(8)]
        with pytest.raises(
            Problem, match="would upload 9 request bodies at the same time"
        ) as raised:
            flood.enter_context(memory.lease("flood"))
        assert raised.value.status == 429
        with ExitStack() as others:
            for _ in range(4):
                others.enter_context(memory.lease("ann"))
            with pytest.raises(Problem):
                others.enter_context(memory.lease("ann"))
            others.enter_context(memory.lease("bob"))
        leases[0].arrived()
        leases[0].arrived()
        flood.enter_context(memory.lease("flood"))
        with pytest.raises(Problem):
            flood.enter_context(memory.lease("flood"))


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


def headed(client, size, *more):
    lines = ["POST /generate HTTP/1.1", "Host: localhost", f"{CLIENT}: {client}", *more]
    return ("\r\n".join([*lines, f"Content-Length: {size}"]) + "\r\n\r\n").encode()


def test_an_announced_length_over_the_limit_is_refused_unread():
    async def test():
        async with cluster(1, router={"max_body_bytes": 2**20}) as (under_test, _):
            port = int(under_test.url.rpartition(":")[2])
            found = []
            for size, *more in [(2**20 + 1,), (10**15,), (2**20 + 1, "Content-Encoding: gzip")]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(headed("a", size, *more))
                found.append(int((await reader.readline()).split()[1]))
                writer.close()
            return found

    assert asyncio.run(test()) == [413] * 3


ENDLESS = {
    "of spaces": headed("flood", 2**18 - 1) + b" " * 100_000,
    "of one byte": headed("flood", 2**18 - 1) + b"{",
    "empty": headed("flood", 100),
    "compressed": headed("flood", 2**17, "Content-Encoding: gzip") + gzip.compress(b" " * 200_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize(
    ("connections", "mib"), [(60, 1), pytest.param(3_000, 64, marks=pytest.mark.slow)]
)
def test_bodies_that_never_end_take_no_more_than_their_share(kind, connections, mib):
    async def test():
        async with cluster(1, router={"max_bodies_bytes": mib * MIB}) as (under_test, _):
            port = int(under_test.url.rpartition(":")[2])
            refused, writers = [], []

            async def flood():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
                writer.write(ENDLESS[kind])
                try:
                    refused.append(b" 429 " in await reader.readline())
                except ConnectionError:  # the router closed before it had read everything
                    refused.append(True)

            flooding = [asyncio.create_task(flood()) for _ in range(connections)]
            size = max(ARRIVING_BYTES, len(ENDLESS[kind]) if kind == "of spaces" else 0)
            size = 200_000 if kind == "compressed" else size
            # at most half of the memory for one client
            await until(lambda: len(refused) >= connections - mib * MIB // 2 // size)
            assert all(refused)
            named = {CLIENT: "ann"}
            async with under_test.post(GENERATE, **named) as answer:
                assert answer.status == 200
            for task in flooding:
                task.cancel()
            for writer in writers:
                writer.close()
            await asyncio.gather(*flooding, return_exceptions=True)
            await until(lambda: not under_test.proxy._memory._bytes._had)

    asyncio.run(test())
