"""Measure the cost of a gateway for a stock engine, on a shared machine.

    python -m tests.vllm_cpu.gateway_cost SERVER_URL GATEWAY_URL SERVER_PID \
        [PAIRS [SECONDS [OUTPUT [SPREAD]]]]
    python -m tests.vllm_cpu.gateway_cost SERVER_URL,ROUTER_URL GATEWAY_URL ...

The second form also measures a router without a gateway.

The load of shares.py, with answers of OUTPUT tokens, SPREAD (half of it) more or less, goes to the
server itself and to the gateway before it in turns, in pairs of blocks whose order changes (AB BA
AB ...), so that what the machine does meanwhile falls on both. Of each pair the ratio is taken,
gateway by server; shown is their median, with the interval that covers the median of all such pairs
with 95%, whatever their distribution (by order statistics).

- tokens a second: by the clock, of the answers that came in a block;
- tokens a CPU second: of the server's processes, which waiting for a core does not lengthen;
- tokens a step (vLLM; SGLang: a decode step): how full batches were, which no clock enters.
"""

import asyncio
import re
import statistics
import sys
import time
from math import comb, nan
from typing import NamedTuple

import psutil
from aiohttp import ClientSession, ClientTimeout

from tests.vllm_cpu.shares import flood

STEPS = re.compile(
    r'vllm:iteration_tokens_total_count|sglang:cuda_graph_passes_total\{.*mode="decode'
)
STEP_TOKENS = re.compile(
    r'vllm:iteration_tokens_total_sum|sglang:realtime_tokens_total\{.*mode="decode"'
)


class Reading(NamedTuple):
    """A reading of the clock, the processes and the engine."""

    wall_s: float
    cpu_s: float
    steps: float
    tokens: float


class Block(NamedTuple):
    """The results of a block. ``tokens_a_step`` is 0 if the engine does not count steps."""

    modest_share: float
    tokens_a_second: float
    tokens_a_cpu_second: float
    tokens_a_step: float


def cpu_seconds(server):
    """Return the CPU seconds of a process and all its living descendants."""
    times = [one.cpu_times() for one in (server, *server.children(recursive=True))]
    return sum(time.user + time.system for time in times)


async def block(session, url, server, process, seconds, **load):
    """Measure a block, whose answers ``server`` computes."""

    async def read():
        async with session.get(f"{server}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        steps, tokens = (
            sum(float(line.rsplit(" ", 1)[1]) for line in lines if name.match(line))
            for name in (STEPS, STEP_TOKENS)
        )
        return Reading(time.monotonic(), cpu_seconds(process), steps, tokens)

    got, _, before, after = await flood(session, url, seconds, read=read, **load)
    wall_s, cpu_s, steps, tokens = (b - a for a, b in zip(before, after, strict=True))
    total = max(1, got.total())
    return Block(got["modest"] / total, total / wall_s, total / cpu_s, tokens / max(1, steps))


def interval(values):
    """Return two values that enclose the median of their distribution with 95% confidence."""
    ordered, n, below = sorted(values), len(values), 0.0
    for k in range(n):
        below += comb(n, k) / 2**n
        if below > 0.025:
            break
    return (ordered[k - 1], ordered[n - k]) if k else (nan, nan)


def told_of(values):
    """Return the median and its interval as text."""
    low, high = interval(values)
    return f"{statistics.median(values):.3f} ({low:.3f} to {high:.3f})"


async def main(server, gateway, pid, pairs, seconds, output, spread=None):
    """Print each pair, then shares and ratios."""
    process, alone, behind = psutil.Process(pid), [], []
    # Without any spread, all requests of a batch end in the same step.
    load = {"output": output, "spread": output // 2 if spread is None else spread}
    server, _, router = server.partition(",")
    places = {router or server: alone, gateway: behind}
    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        for number in range(pairs):
            for url in list(places)[:: -1 if number % 2 else 1]:
                places[url].append(await block(session, url, server, process, seconds, **load))
            told = zip(Block._fields, alone[-1], behind[-1], strict=True)
            print(", ".join(f"{name} {a:.4g} -> {b:.4g}" for name, a, b in told), flush=True)
    for found, name in ((alone, "alone"), (behind, "behind the gateway")):
        print(f"modest_share, {name}: {told_of([one.modest_share for one in found])}")
    for name in Block._fields[1:]:
        ratios = [
            getattr(b, name) / max(1e-9, getattr(a, name))
            for a, b in zip(alone, behind, strict=True)
        ]
        if any(ratios):
            print(f"{name}, gateway by alone: {told_of(ratios)}")


if __name__ == "__main__":
    server, gateway, pid, *rest = sys.argv[1:]
    pairs, seconds, output, *spread = [*rest, *("20", "15", "16")[len(rest) :]]
    most = int(output), *map(int, spread)
    asyncio.run(main(server, gateway, int(pid), int(pairs), float(seconds), *most))
