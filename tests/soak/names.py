"""Measure a router's memory and CPU time for many client names that each send one request.

    python -m tests.soak.names NAMES [FLAG ...]

``fairbench serve`` with these flags runs before a null worker. Prints a row for each tenth of the
names. The exit code is 1 if memory or CPU time grows over the last half.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from fairbench_load import headers
from tests.load.live_null_server import null_server

AT_ONCE, PARTS, PROMPTS = 32, 10, 50
SLACK_MIB, SLACK_CPU = 4.0, 1.25


@contextmanager
def serving(url, flags):
    """Run a router before the worker at ``url``. Yield its process and its URL."""
    command = [sys.executable, "-m", "fairbench", "serve", "--port", "0", "--worker-url", url]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


def used(pid):
    """Return the MiB that a process has in memory, and its CPU seconds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, cpu_s


async def asked(session, url, number):
    """Send a request of a new name."""
    ids = [number % PROMPTS * 10 + n for n in range(10)]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 2}, "stream": True}
    shown = {headers.CLIENT: f"client-{number}"}
    async with session.post(f"{url}/generate", json=body, headers=shown) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


async def in_turn(session, url, left):
    for number in left:
        await asked(session, url, number)


async def up(session, url):
    """Return once the router has found its worker."""
    async with asyncio.timeout(120):
        while True:
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def rows_of(names, flags, tell):
    """Return a row for each tenth: names so far, MiB, CPU milliseconds of a request."""
    rows = []
    async with null_server(chunks=1, keep=False) as worker:
        with serving(worker.url, flags) as (pid, url):
            async with ClientSession(connector=TCPConnector(limit=0)) as session:
                await up(session, url)
                _, cpu_s = used(pid)
                for part in range(1, PARTS + 1):
                    left = iter(range(names * (part - 1) // PARTS, names * part // PARTS))
                    await asyncio.gather(*(in_turn(session, url, left) for _ in range(AT_ONCE)))
                    mib, now_s = used(pid)
                    rows.append((names * part // PARTS, mib, (now_s - cpu_s) / names * PARTS * 1e3))
                    cpu_s = now_s
                    told, mib, cpu_ms = rows[-1]
                    tell(f"{told} names: {mib:.1f} MiB, {cpu_ms:.2f} ms of CPU a request")
    return rows


def grew(rows):
    """Return complaints about memory or CPU time that grew over the last half."""
    half, last = rows[len(rows) // 2], rows[-1]
    wrong = [f"memory: {half[1]:.1f} to {last[1]:.1f} MiB"] if last[1] > half[1] + SLACK_MIB else []
    before, after = ([row[2] for row in part] for part in (rows[1:5], rows[-4:]))
    if min(after) > SLACK_CPU * min(before):
        wrong.append(f"CPU time: {min(before):.2f} to {min(after):.2f} ms a request")
    return wrong


def main(names, *flags):
    rows = asyncio.run(rows_of(int(names), flags, lambda text: print(text, flush=True)))
    wrong = grew(rows)
    print(json.dumps({"names": rows[-1][0], "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
