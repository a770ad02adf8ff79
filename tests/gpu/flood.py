"""Run a heavy and a well-behaved client, each with a fixed number of requests in flight."""

import asyncio
import random
import statistics
import time

import aiohttp

from tests.gpu.loops import VOCABULARY

PROMPT, OUTPUT = 256, 128
CLIENTS = {"flood": 384, "modest": 96}
SETTLE_S = 6.0


def run(url, seconds, seed):
    """Return answers by client after ``SETTLE_S``, their durations, and output tokens/s."""
    return asyncio.run(_run(url, seconds, seed))


async def _run(url, seconds, seed):
    finished, start_s = [], time.monotonic()

    async def client(session, name, number):
        draw = random.Random(f"{seed} {name} {number}")
        while True:
            body = {
                "input_ids": draw.choices(VOCABULARY, k=PROMPT),
                "sampling_params": {"max_new_tokens": OUTPUT, "ignore_eos": True},
            }
            sent_s = time.monotonic() - start_s
            headers = {"x-fairbench-client": name}
            async with session.post(f"{url}/generate", json=body, headers=headers) as answer:
                answer.raise_for_status()
                await answer.read()
            over_s = time.monotonic() - start_s
            finished.append((name, over_s, over_s - sent_s))

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        tasks = [
            asyncio.create_task(client(session, name, number))
            for name, many in CLIENTS.items()
            for number in range(many)
        ]
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a client ends early only after an error
    return _summary(finished, seconds)


def _summary(finished, seconds):
    chosen = [row for row in finished if SETTLE_S < row[1] <= seconds]
    latencies = {name: sorted(row[2] for row in chosen if row[0] == name) for name in CLIENTS}
    return {
        "seconds": seconds - SETTLE_S,
        "answers": {name: len(values) for name, values in latencies.items()},
        "modest_share": len(latencies["modest"]) / max(1, len(chosen)),
        "output_tok_s": len(chosen) * OUTPUT / (seconds - SETTLE_S),
        "latency_p50_s": {
            name: round(statistics.median(values), 3)
            for name, values in latencies.items()
            if values
        },
    }
