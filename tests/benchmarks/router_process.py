"""Find the limits of one ``fairbench serve`` process: python -m tests.benchmarks.router_process

A null fleet of 4 to 1,000 workers answers ``/v1/completions`` as streams. The script measures the
CPU time of the router's process, and extrapolates to a core of its own. A prompt belongs to a
conversation: 66 words that all share, then the client's own words, of which the last 40 are new.
Each row varies one factor: the length of prompts, the chunks of an answer, or the number of
workers. Further rows measure open streams, health checks, and messages to a peer with the totals of
10,000 clients. Writes results/tables/router-process.csv, and the extrapolation to 1,000 workers to
results/tables/router-fleet.csv.
"""

import asyncio
import csv
import json
import random
import sys
import time
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import msgspec
import psutil

from fairbench.schedulers.base import Setup
from fairbench_serve.peers import PeerMessage
from tests.benchmarks.live_router import await_health, cpu_s, free_port, running
from tests.benchmarks.router_scale import CLIENTS, Traffic
from tests.load.live_null_server import Connection, NullServer

TABLE = Path(__file__).resolve().parents[2] / "results/tables/router-process.csv"
SENDERS, AT_ONCE, OUTPUT_TOKENS = 400, 32, 256
BEGINNING = 64  # streams started at a time; more would overflow a queue of connections
WARM, IDLE_S = 200, 10.0
# words of a prompt, chunks of an answer, workers, requests
CASES = (
    (512, 16, 4, 600),
    (512, 16, 64, 600),
    (512, 16, 1000, 600),
    (2_700, 16, 64, 600),
    (21_000, 16, 64, 200),
    (512, 1, 64, 600),
    (512, 256, 64, 200),
)
# Numbers of open streams, and seconds between their chunks, which let all streams begin. A router
# is limited by 20,000 descriptors, two per stream.
OPEN = ((1000, 4.0), (9_500, 50.0))
# The load that a simulated A100 serves: requests/s, prompt tokens and answer tokens, by `fairbench
# run --workload W --scenario none --dp 4 --duration 60 --scheduler d2lpm`.
LOADS = {
    "chat": (5.29, 396, 139),
    "tot": (1.77, 1202, 256),
    "judge": (2.98, 3149, 193),
    "long-qa": (1.29, 22_077, 16),
}
FLEET, BUSY = 1000, 0.7
FLEET_TABLE = TABLE.with_name("router-fleet.csv")
TOLD, LATER = 10, 100


async def listen(workers, chunks, gap_s):
    """Start the fleet, which prints its ports."""
    server = NullServer(chunks=chunks, gap_s=gap_s, keep=False)
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
        for _ in range(workers)
    ]
    print(json.dumps([one.sockets[0].getsockname()[1] for one in made]), flush=True)
    await asyncio.Event().wait()


@contextmanager
def serving(workers, chunks, gap_s=0.0):
    """Start the router. Yield its process and its port."""
    fleet = [sys.executable, "-m", __spec__.name, "fleet", f"{workers}", f"{chunks}", f"{gap_s}"]
    with running(fleet) as started:
        port = free_port()
        command = [sys.executable, "-m", "fairbench", "serve", "--port", f"{port}"]
        for one in json.loads(started.stdout.readline()):
            command += ["--worker-url", f"http://127.0.0.1:{one}"]
        with running(command) as process:
            await_health(f"http://127.0.0.1:{port}")
            yield process, port


def calls(words, number):
    """Return the requests in sending order. Clients take turns."""
    rng = random.Random(0)
    shared = " ".join(f"s{place}" for place in range(66))
    own = [[f"w{rng.randrange(100_000)}" for _ in range(words - 66)] for _ in range(SENDERS)]
    for turn in range(number):
        mine = own[turn % SENDERS]
        mine[-40:] = [f"w{rng.randrange(100_000)}" for _ in range(40)]
        prompt = f"{shared} {' '.join(mine)}"
        asked = {"model": "null", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
        body = json.dumps(asked).encode()
        yield (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"x-fairbench-client: client-%d\r\nContent-Length: %d\r\n\r\n%b"
            % (turn % SENDERS, len(body), body)
        )


async def load(port, sent, at_once):
    """Send requests, a fixed number at a time. Return the bytes received."""
    left, bytes_ = iter(sent), 0
    beginning = asyncio.Semaphore(BEGINNING)

    async def client():
        nonlocal bytes_
        async with beginning:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        for call in left:
            async with beginning:
                writer.write(call)
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readuntil(b"\r\n0\r\n\r\n")
            if b" 200 OK" not in head[:20] or b"[DONE]" not in answer[-40:]:
                raise SystemExit(f"not a whole stream: {head + answer[:200]!r}")
            bytes_ += len(head) + len(answer)
        writer.close()

    await asyncio.gather(*(client() for _ in range(at_once)))
    return bytes_


async def begin(port, sent):
    """Begin each request, and hang up."""
    for call in sent:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(call)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()


def of_requests(words, chunks, workers, number):
    """Return the router's CPU per request, and the rate that a core of its own allows."""
    with serving(workers, chunks) as (process, port):
        sent = list(calls(words, number + WARM))
        asyncio.run(load(port, sent[:WARM], AT_ONCE))
        resting = idle_share(process)
        before, start = cpu_s(process), time.perf_counter()
        came = asyncio.run(load(port, sent[WARM:], AT_ONCE))
        used_s = cpu_s(process) - before - resting * (time.perf_counter() - start)
    moved = came + sum(map(len, sent[WARM:]))
    what = f"{words:,} words, {chunks} chunks, {workers:,} workers"
    rates = [f"{rate:,.0f}" for rate in (number / used_s, number * chunks / used_s)]
    return [what, f"{1000 * used_s / number:.2f}", *rates, f"{moved / used_s / 1e6:.1f}", ""]


def idle_share(process):
    """Return the share of a core that an idle router spends on health checks of its workers."""
    before = cpu_s(process)
    time.sleep(IDLE_S)
    return (cpu_s(process) - before) / IDLE_S


def of_open_streams(number, gap_s):
    """Return the router's memory per open stream, and its CPU per chunk."""
    chunks = 8
    with serving(64, chunks, gap_s) as (process, port):
        sent = list(calls(512, WARM + number))
        asyncio.run(begin(port, sent[:AT_ONCE]))
        of = psutil.Process(process.pid)
        before, rss, descriptors = cpu_s(process), of.memory_info().rss, of.num_fds()
        most = open_ = 0

        async def watched():
            nonlocal most, open_
            under_way = asyncio.ensure_future(load(port, sent[WARM:], number))
            while not under_way.done():
                most = max(most, of.memory_info().rss)
                open_ = max(open_, (of.num_fds() - descriptors) // 2)
                await asyncio.sleep(0.5)
            await under_way

        asyncio.run(watched())
        used_s = cpu_s(process) - before
    rates = [f"{number / used_s:,.0f}", f"{number * chunks / used_s:,.0f}"]
    kib = f"{(most - rss) / open_ / 1024:.0f}"
    what = f"{number:,} streams, {open_:,} open at once"
    return [what, f"{1000 * used_s / number:.2f}", *rates, "", kib]


def idle(workers):
    """Return the CPU per second of a router that only checks its workers."""
    with serving(workers, 1) as (process, _):
        share = idle_share(process)
    return [f"idle, {workers:,} workers: {share:.1%} of a core", "", "", "", "", ""]


def of_peers(whole):
    """Measure the CPU of sending and of receiving one message to a peer, with 10,000 clients.

    The message is either ``whole`` or holds only the changes since the previous message.
    """
    one, other = (Traffic("d2lpm", 64) for _ in range(2))
    for traffic in (one, other):
        traffic.router.prepare(Setup())
        traffic.router.join_peers()
        for _ in range(2 * CLIENTS):
            traffic.decide()
    known = 0
    told = heard = 0.0
    for turn in range(TOLD + 1):
        for _ in range(LATER):
            one.decide()
        start = time.process_time()
        totals = one.router.export_totals(0 if whole else known)
        body = msgspec.json.encode(PeerMessage("one", "x", {"router": totals}))
        # the first message has the totals of all clients
        told += (time.process_time() - start) * bool(turn)
        start = time.process_time()
        message = msgspec.json.decode(body, type=PeerMessage)
        other.router.merge_totals("one", message.parts["router"], 0.0)
        heard += (time.process_time() - start) * bool(turn)
        known = other.router.heard_totals()["one"].version
    when = "all told" if whole else f"{LATER} requests later"
    what = f"a message of {CLIENTS:,} clients, {when}: {len(body) / 1e6:.2g} MB, to make / to hear"
    return [what, f"{1000 * told / TOLD:.1f} / {1000 * heard / TOLD:.1f}", "", "", "", ""]


def fleet(measured):
    """Extrapolate how many routers, each 70% busy, 1,000 workers need.

    A chunk of a stream counts as a token. Every router checks every worker.
    """

    def cost_ms(words, chunks):
        return float(measured[f"{words:,} words, {chunks} chunks, 64 workers"][1])

    per_chunk = (cost_ms(512, 256) - cost_ms(512, 1)) / 255
    per_word = (cost_ms(21_000, 16) - cost_ms(512, 16)) / (21_000 - 512)
    resting = next(name for name in measured if name.startswith(f"idle, {FLEET:,}"))
    room = BUSY - float(resting.partition(": ")[2].partition("%")[0]) / 100
    for name, (rate, words, chunks) in LOADS.items():
        each_ms = cost_ms(512, 16) + per_chunk * (chunks - 16) + per_word * (words - 512)
        cores = FLEET * rate * each_ms / 1000
        row = [f"`{name}`", f"{rate:.2f}", f"{words:,}", f"{chunks}", f"{each_ms:.1f}"]
        yield [*row, f"{cores:.1f}", f"{ceil(cores / room)}"]


def rows():
    for case in CASES:
        yield of_requests(*case)
    for number, gap_s in OPEN:
        yield of_open_streams(number, gap_s)
    for workers in (64, 1000):
        yield idle(workers)
    for whole in (False, True):
        yield of_peers(whole)


def main():
    if sys.argv[1:2] == ["fleet"]:
        workers, chunks, gap_s = sys.argv[2:]
        asyncio.run(listen(int(workers), int(chunks), float(gap_s)))
    head = ["", "CPU ms each", "requests/s", "chunks/s", "MB/s", "KiB a stream"]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for row in rows():
            writer.writerow(row)
            file.flush()
    with TABLE.open(encoding="utf-8", newline="") as file:
        measured = {row[0]: row for row in csv.reader(file)}
    with FLEET_TABLE.open("w", encoding="utf-8", newline="") as file:
        head = ["", "requests/s a worker", "prompt", "answer", "CPU ms each"]
        head += [f"cores for {FLEET:,} workers", f"routers, {BUSY:.0%} busy"]
        csv.writer(file, lineterminator="\n").writerows([head, *fleet(measured)])


if __name__ == "__main__":
    main()
