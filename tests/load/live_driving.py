"""Small experiments whose load is sent to a null server in this process."""

import asyncio
import tempfile
from pathlib import Path

from fairbench.config.resolve import resolve
from fairbench_load.driver.drive import drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.records import read_records
from tests.load.live_null_server import null_server

VOCAB = range(16, 32_000)

# Ten seconds of arrivals pass in a fifth of a second.
SCALE = 50.0
SMALL = {
    "chat": {"turns_min": 2, "turns_max": 3, "output_tokens": 6.0, "max_new_tokens": 9},
    "judge": {"article_tokens": 60.0, "judgement_tokens": 5, "merge_output_tokens": 4},
    "long-qa": {"questions": 3, "document_tokens": 90.0, "answer_tokens": 4.0},
    "tot": {"branches": 2, "question_tokens": 30.0, "output_tokens": 3},
}


def small_spec(workload="chat", settings=None, **flags):
    """Return a spec with two programs for each of two well-behaved (or a scenario's) clients."""
    given = {"scenario": "none", "clients": 2, "num_programs": 2, "request_rate": 1.0}
    params = SMALL[workload] | (settings or {})
    return resolve(
        {"workload": workload, "scheduler": "fcfs"} | given | flags,
        {f"{workload}.{name}": value for name, value in params.items()},
    )


def driven(spec, *, target=None, interrupted=lambda server: False, **server_settings):
    """Return (records, server, result) of a spec. ``target`` are fields of the ``DriverTarget``."""

    async def run(folder):
        async with null_server(**server_settings) as server:
            fields = {"time_scale": SCALE} | (target or {})
            result = await drive(
                spec,
                DriverTarget(**({"base_url": server.url} | fields)),
                folder,
                vocab=VOCAB,
                interrupted=lambda: interrupted(server),
            )
            await asyncio.sleep(0.02)  # the server notices dropped connections
            return server, result

    with tempfile.TemporaryDirectory() as folder:
        server, result = asyncio.run(run(Path(folder)))
        return read_records(Path(folder)), server, result


def answered_by(replies, later, *, spec=None, stays_open=False, **target):
    """Return the records of a run, and the number of requests that its server received.

    The server's first connections get the given replies, and all others get ``later``. Without a
    spec, two requests are sent. The server closes its connections, unless ``stays_open``.
    """
    left, asked, kept = list(replies), [], []

    async def run(folder):
        async def answer(reader, writer):
            asked.append(await reader.read(2**16))
            writer.write(left.pop(0) if left else later)
            await writer.drain()
            if stays_open:
                kept.append(writer)
            else:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        given = spec or small_spec("chat", {"turns_min": 1, "turns_max": 1}, num_programs=1)
        async with server:
            await drive(given, DriverTarget(url, time_scale=SCALE, **target), folder, vocab=VOCAB)
            for writer in kept:
                writer.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
        return read_records(Path(folder)), len(asked)
