"""Whom a server serves, while one client floods it: ``python shares.py URL [SECONDS [SERVERS]]``.

Of each server the flooder keeps 32 requests under way, the modest client 4, both more than a server
of four slots runs at once. Prompts of 48 random tokens, answers of 16; tokens are counted as
answers come.
"""

import asyncio
import random
import sys
import time
from collections import Counter

from aiohttp import ClientSession, ClientTimeout

UNDER_WAY = {"flooder": 32, "modest": 4}
PROMPT, OUTPUT, VOCABULARY = 48, 16, 2048
WARM_UP = 0.2  # of the time, before anything is counted


async def ask(session, url, client, model):
    """One request; the tokens that it has taken, prompt and answer."""
    draw = random.Random()
    body = {
        "model": model,
        "prompt": [draw.randrange(16, VOCABULARY) for _ in range(PROMPT)],
        "max_tokens": OUTPUT,
        "min_tokens": OUTPUT,
    }
    named = {"x-fairbench-client": client, "x-session-id": client}
    async with session.post(f"{url}/v1/completions", json=body, headers=named) as answer:
        answer.raise_for_status()
        usage = (await answer.json())["usage"]
        return usage["prompt_tokens"] + usage["completion_tokens"]


async def main(url, seconds, servers):
    """Prints what each client got."""
    got, done, over = Counter(), Counter(), time.monotonic() + seconds
    counted_from = time.monotonic() + WARM_UP * seconds

    async def client(name):
        while time.monotonic() < over:
            tokens = await ask(session, url, name, model)
            if counted_from < time.monotonic() < over:
                got[name] += tokens
                done[name] += 1

    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        async with session.get(f"{url}/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        loops = [client(name) for name, count in UNDER_WAY.items() for _ in range(servers * count)]
        await asyncio.gather(*loops)
    for name in UNDER_WAY:
        share = got[name] / max(1, got.total())
        print(f"{name:<8} {done[name]:>5} requests {got[name]:>8,} tokens   share {share:.3f}")
    print(f"tokens a second: {got.total() / ((1 - WARM_UP) * seconds):,.0f}")


if __name__ == "__main__":
    url, seconds, servers = [*sys.argv[1:], *("60", "1")[len(sys.argv) - 2 :]]
    asyncio.run(main(url.rstrip("/"), float(seconds), int(servers)))
