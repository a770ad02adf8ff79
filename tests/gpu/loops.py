"""Run closed loops against an SGLang server, in the form that ``fairbench validate FILE`` reads."""

import asyncio
import json
import random
import time
from dataclasses import dataclass

import aiohttp

VOCABULARY = range(16, 128_000)


@dataclass(frozen=True)
class Loop:
    """A set of distinct prompts, sent ``concurrency`` at a time, and once more if ``warm``.

    ``prompts`` and ``outputs`` are the lengths of each request in tokens. ``forbid_end`` sets the
    output length as fairbench's driver does (``min_new_tokens``); otherwise, ``ignore_eos`` does.
    """

    name: str
    concurrency: int
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    warm: bool = False
    forbid_end: bool = False

    def body(self, index):
        draw = random.Random(f"{self.name} {index}")
        output = self.outputs[index]
        ends = {"min_new_tokens": output} if self.forbid_end else {"ignore_eos": True}
        return json.dumps(
            {
                "input_ids": draw.choices(VOCABULARY, k=self.prompts[index]),
                "sampling_params": {"max_new_tokens": output, "temperature": 1.0, **ends},
                "stream": True,
            }
        ).encode()


def fixed(name, concurrency, number, prompt, output, **more):
    """Return requests of equal length."""
    return Loop(name, concurrency, (prompt,) * number, (output,) * number, **more)


def mixed(name, concurrency, number, output):
    """Return the four lengths of the A100 runs, at the same frequencies."""
    draw = random.Random("mixed")
    lengths = draw.choices((785, 3089, 6161, 12305), weights=(78, 62, 34, 26), k=number)
    return Loop(name, concurrency, tuple(lengths), (output,) * number)


def varied(name, concurrency, number):
    """Return requests that all differ in length."""
    draw = random.Random("varied")
    prompts = tuple(draw.randint(100, 4000) for _ in range(number))
    return Loop(name, concurrency, prompts, tuple(draw.randint(16, 400) for _ in range(number)))


def run(url, loop):
    """Run the loop with an empty cache, then with a warm one. Return both records."""
    return asyncio.run(_run(url, loop))


async def _run(url, loop):
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        async with session.get(f"{url}/server_info") as answer:
            info = await answer.json()
        async with session.post(f"{url}/flush_cache?timeout=30") as answer:
            answer.raise_for_status()
        records = []
        bodies = [loop.body(index) for index in range(len(loop.prompts))]
        for temperature in ("cold", "warm") if loop.warm else ("cold",):
            columns = await _play(session, url, loop, bodies)
            records.append({
                "run_id": f"sglang-h100-{loop.name}-{temperature}",
                "engine": "sglang", "engine_version": info["version"], "gpu": "h100-sxm5-80gb",
                "model": "llama-3.1-8b", "tp": 1, "arrival": "closed",
                "concurrency": loop.concurrency, "warm": temperature == "warm",
                "pool_tokens": info["max_total_num_tokens"], "columns": columns,
            })  # fmt: skip
        return records


async def _play(session, url, loop, bodies):
    rows = [None] * len(bodies)
    left = iter(range(len(bodies)))
    start_s = time.monotonic()

    async def one_at_a_time():
        for index in left:
            rows[index] = await _ask(session, url, bodies[index], start_s)

    await asyncio.gather(*(one_at_a_time() for _ in range(loop.concurrency)))
    submitted, ttft, latency, metas = zip(*rows, strict=True)
    return {
        "client": ["all"] * len(rows),
        "submit_s": [round(value, 4) for value in submitted],
        "prompt_tokens": list(loop.prompts),
        "output_tokens": [meta["completion_tokens"] for meta in metas],
        "cached_tokens": [meta["cached_tokens"] for meta in metas],
        "ttft_s": [round(value, 4) for value in ttft],
        "latency_s": [round(value, 4) for value in latency],
        "error": [""] * len(rows),
    }


async def _ask(session, url, body, start_s):
    made_s, first_s, tail = time.monotonic(), None, b""
    json_type = {"Content-Type": "application/json"}
    async with session.post(f"{url}/generate", data=body, headers=json_type) as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            first_s = first_s or time.monotonic()
            tail = (tail + chunk)[-40_000:]
    lines = [line for line in tail.split(b"\n") if line.startswith(b"data: {")]
    end_s = time.monotonic()
    meta = json.loads(lines[-1][6:])["meta_info"]
    return made_s - start_s, first_s - made_s, end_s - made_s, meta
