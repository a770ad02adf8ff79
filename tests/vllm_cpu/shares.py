"""Measure service by client on a flooded server: ``python shares.py URL [SECONDS [SERVERS]]``.

On each server, the heavy client keeps 32 requests in flight and the well-behaved client 4, both
more than a server of four slots runs at a time. Prompts have 48 random tokens, and answers 16.
Tokens are counted as answers arrive.
"""

import asyncio
import random
import sys
import time
from collections import Counter

from aiohttp import ClientSession, ClientTimeout

UNDER_WAY = {"flooder": 32, "modest": 4}
PROMPT, OUTPUT, VOCABULARY = 48, 16, 2048
WARM_UP = 0.2  # the first part of the time, which does not count


async def ask(session, url, client, model, output=OUTPUT, spread=0, headers=None):
    """Send a request. Return its tokens, of prompt and answer."""
    draw = random.Random()
    output += draw.randint(-spread, spread)
    body = {
        "model": model,
        "prompt": [draw.randrange(16, VOCABULARY) for _ in range(PROMPT)],
        "max_tokens": output,
        "min_tokens": output,
    }
    named = {"x-fairbench-client": client, "x-session-id": client} | (headers or {})
    async with session.post(f"{url}/v1/completions", json=body, headers=named) as answer:
        answer.raise_for_status()
        usage = (await answer.json())["usage"]
        return usage["prompt_tokens"] + usage["completion_tokens"]


async def model_at(session, url):
    """Return the name of the server's model."""
    async with session.get(f"{url}/v1/models") as answer:
        return (await answer.json())["data"][0]["id"]


async def clock():
    """Return the time of the clock, the default reading at both ends of the counted time."""
    return time.monotonic()


async def flood(session, url, seconds, *, servers=1, output=OUTPUT, spread=0, read=clock):
    """Return tokens and requests by client after the warm-up, and both values of ``read``.

    Answers have ``output`` tokens, plus or minus ``spread``. At the end of the time, requests in
    flight are abandoned.
    """
    got, done, counts = Counter(), Counter(), False
    model = await model_at(session, url)

    async def client(name):
        while True:
            tokens = await ask(session, url, name, model, output, spread)
            if counts:
                got[name] += tokens
                done[name] += 1

    async with asyncio.TaskGroup() as group:
        loops = [
            group.create_task(client(name))
            for name, number in UNDER_WAY.items()
            for _ in range(servers * number)
        ]
        await asyncio.sleep(WARM_UP * seconds)
        before, counts = await read(), True
        await asyncio.sleep((1 - WARM_UP) * seconds)
        after, counts = await read(), False
        for loop in loops:
            loop.cancel()
    return got, done, before, after


async def main(url, seconds, servers):
    """Print the service of each client."""
    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        got, done, before_s, after_s = await flood(session, url, seconds, servers=servers)
    for name in UNDER_WAY:
        share = got[name] / max(1, got.total())
        print(f"{name:<8} {done[name]:>5} requests {got[name]:>8,} tokens   share {share:.3f}")
    print(f"tokens a second: {got.total() / (after_s - before_s):,.0f}")


if __name__ == "__main__":
    url, seconds, servers = [*sys.argv[1:], *("60", "1")[len(sys.argv) - 2 :]]
    asyncio.run(main(url.rstrip("/"), float(seconds), int(servers)))
