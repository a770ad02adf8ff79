"""Soak two routers: twenty clients send requests to four emulated workers that fail.

    python -m tests.soak.soak REQUESTS FAULTS [SEED [d2lpm|fair-finish]]

The first router is ``fairbench serve --dp 4`` with that scheduler, which restarts dead workers. The
second serves the same workers with a VTC gateway. Prints the events, and exits with 1 if a check
fails.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from aiohttp import ClientSession, TCPConnector
from prometheus_client.parser import text_string_to_metric_families

from fairbench_serve.addresses import reserved
from tests.soak.soak_clients import Crowd
from tests.soak.soak_faults import Saboteur
from tests.soak.soak_recount import (
    compared_with_books,
    compared_with_clients,
    left_behind,
    read_log,
    recounted,
)

CLIENTS, LOOPS, WORKERS = 20, 3, 4
ADMIN_KEY = "of-the-operator"
IDLE_S = 120.0  # after this time, no request is in flight
KEPT_S = 6.0  # unused connections are closed within this time
SAMPLES = 200  # samples of memory in total, if there are enough requests
SLACK_MIB = 3.0
ENGINE = ("--set", "engine.max_total_tokens=40000", "--set", "engine.max_running_requests=32")
LOCAL = {"d2lpm": "dlpm", "fair-finish": "dlpm-hold"}  # the schedulers of the first router


class Router:
    """A ``fairbench serve`` with a file for each of its outputs."""

    def __init__(self, folder, name, *arguments):
        self.errors = folder / f"{name}.err"
        environment = os.environ | {
            "FAIRBENCH_SCHEDULERS": str(Path(__file__).with_name("soak_plugin.py")),
            "SOAK_LOG": str(folder),
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairbench", "serve", "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )

    def begun(self):
        """Return its URL once it serves."""
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.errors.read_text()
        return self.url

    def mib(self):
        """Return its memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files(self):
        """Return its number of open files and sockets."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def two_routers(folder, keys, names, local):
    """Yield both routers, by the names of their schedulers, and the workers' URLs."""
    with reserved("127.0.0.1", 0, "a port for the admin") as port:
        yield from _two_routers(folder, keys, names, local, port)


def _two_routers(folder, keys, names, local, port):
    (folder / "keys.toml").write_text("".join(f'"{key}" = "{one}"\n' for one, key in keys.items()))
    (folder / "admin").write_text(ADMIN_KEY)
    known = ("--keys", str(folder / "keys.toml"))
    routers = []
    try:
        first = Router(
            *(folder, "first", "--dp", str(WORKERS), "--backend", "emulator"),
            *("--scheduler", f"{names[0]}+{local}", "--time-scale", "20", *ENGINE, *known),
            *("--admin-port", str(port), "--admin-key-file", str(folder / "admin")),
            *("--log-dir", str(folder / "workers")),
        )
        routers.append(first)
        first.begun()
        urls = [row["url"] for row in asyncio.run(rows_of(port))]
        named = [part for url in urls for part in ("--worker-url", url)]
        second = Router(
            *(folder, "second", *named, "--router", names[1], "--gateway", "vtc", *known),
            *("--max-inflight-per-worker", "8"),
        )
        routers.append(second)
        second.begun()
        yield routers, urls
    finally:
        for router in reversed(routers):
            router.process.terminate()
        for router in routers:
            router.code = router.process.wait(60)
            router.process.stdout.close()


async def rows_of(port):
    shown = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with (
        ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/workers", headers=shown) as answer,
    ):
        return (await answer.json())["workers"]


async def books_of(session, url):
    """Return a router's metrics as a function of name and labels."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    values = {
        (sample.name.removeprefix("fairbench_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return lambda name, **labels: values.get((name, frozenset(labels.items())), 0)


async def idle(session, url):
    """Return metrics once no request is in flight. Raise AssertionError if one stays."""
    over = time.monotonic() + IDLE_S
    while True:
        books = await books_of(session, url)
        left = sum(books("under_way", worker=str(worker)) for worker in range(WORKERS))
        if not left:
            return books
        assert time.monotonic() < over, f"{left} requests never end at {url}"
        await asyncio.sleep(0.5)


async def crowd_through(routers, urls, keys, total, faults, draw, last_s, tell):
    """Send all requests, with the faults at even distances. Return the results."""
    samples = []

    async def count(done):
        if done % max(1, total // SAMPLES) == 0:
            samples.append((done, [router.mib() for router in routers]))
        if done % max(1, total // 50) == 0:
            tell(f"{done} of {total}, {saboteur.left} faults to come")
        await saboteur.answered(done)

    connector = TCPConnector(limit=0)
    async with ClientSession(connector=connector) as session, ClientSession() as calm:
        saboteur = Saboteur(calm, urls, draw, faults, last_s, total)
        targets = [router.url for router in routers]
        files = [router.files() for router in routers]
        crowd = Crowd(session, targets, keys, draw, total, saboteur.turn, count)
        async with asyncio.TaskGroup() as group:
            group.create_task(saboteur.work())
            group.create_task(crowd.run(LOOPS))
        books = [await idle(calm, url) for url in targets]
        await session.close()
        await asyncio.sleep(KEPT_S)
        files = list(zip(files, [router.files() for router in routers], strict=True))
    return crowd.ended, saboteur.done, books, samples, files


def soak(total, faults, seed, last_s, router="d2lpm", *, tell=lambda text: None):
    """Run a soak. Return observations by name, with errors in ``wrong``."""
    draw, names = random.Random(seed), (f"logged-{router}", "logged-least-loaded")
    keys = {f"client-{n}": f"key-of-{n}-{draw.getrandbits(64):x}" for n in range(CLIENTS)}
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with two_routers(folder, keys, names, LOCAL[router]) as (routers, urls):
            told = asyncio.run(
                crowd_through(routers, urls, keys, total, faults, draw, last_s, tell)
            )
        ended, done, books, samples, files = told
        wrong = [one.why for one in ended.values() if one.how == "wrong"]
        recounts = 0
        for number, router in enumerate(routers):
            log = read_log(folder / f"{names[number]}.jsonl")
            wrong += compared_with_clients(log, ended, number)
            wrong += compared_with_books(log, ended, number, books[number])
            wrong += [f"left behind: {left}"[:2000] for left in left_behind(log)]
            for ours, theirs in recounted(log) if names[number] == "logged-d2lpm" else ():
                recounts += 1
                if ours != theirs:
                    wrong.append(f"credits: recounted {ours}, said {theirs}"[:2000])
            wrong += [] if router.code == 0 else [f"{names[number]}: exit code {router.code}"]
        errors = [router.errors for router in routers] + sorted(folder.glob("workers/**/*.log"))
        for file in errors:
            if "Traceback" in (text := file.read_text(errors="replace")):
                wrong.append(f"{file.name}: {text[text.index('Traceback') :][:3000]}")
    return {
        "seconds": round(time.monotonic() - begun_s),
        "requests": dict(Counter(one.how for one in ended.values())),
        "errors": dict(Counter(one.why for one in ended.values() if one.how == "failed")),
        "faults": dict(Counter(kind for kind, *_ in done)),
        "recounts of all credits": recounts,
        "memory": memory(samples),
        "files open, before and after": files,
        "wrong": wrong,
    }


def memory(samples):
    """Return each router's MiB, the least of each quarter of the requests.

    The least is what the router keeps permanently, because memory of bodies of 64 MiB (some of them
    hostile) is freed twice a minute.
    """
    quarter = len(samples) // 4
    parts = [samples[at : at + quarter] for at in range(0, 4 * quarter, quarter)]
    return [[round(min(row[1][router] for row in part), 1) for part in parts] for router in (0, 1)]


def grew(told):
    """Return complaints about memory that grew over the last half."""
    return [
        f"memory: {quarters} MiB"
        for quarters in told["memory"]
        if quarters[3] > quarters[2] + SLACK_MIB
    ]


def tell(text):
    print(text, flush=True)


def main(total, faults, seed=0, router="d2lpm"):
    told = soak(*map(int, (total, faults, seed)), (8.0, 40.0), router, tell=tell)
    told["wrong"] += grew(told)
    print(json.dumps({**told, "wrong": told["wrong"][:20]}, indent=1))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(*sys.argv[1:]))
