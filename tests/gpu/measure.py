"""Measure SGLang on this machine's GPU: ``python -m tests.gpu.measure PLAN OUT [--seconds N]``.

The plans are:

- ``smoke``: does everything start?
- ``timing``: closed loops, then a flood with and without a gateway
- ``live``: fairbench's own runs, one per scheduler
- ``paper``: the DLPM paper's setting, two seeds per scheduler

A step that would not end in time is skipped with a message. Every server is stopped, whatever
happens.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.gpu import flood
from tests.gpu.llama_8b import LLAMA_8B
from tests.gpu.loops import fixed, mixed, run, varied
from tests.sglang_cpu.tiny_model import CONFIG, write_model

HERE = Path(__file__).parent
# attention without FlashAttention or FlashInfer; prefill launches its kernels one by one
ENGINE = (
    "--attention-backend triton --sampling-backend pytorch "
    "--grammar-backend none --disable-prefill-cuda-graph --random-seed 0"
)
LIVE = (ENGINE, "--cuda-graph-max-bs-decode 64")
CPU = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch "
    "--dtype float32 --disable-cuda-graph --mem-fraction-static 0.1",
)
STOCK = (
    "--load-format dummy --max-running-requests 128 --cuda-graph-max-bs-decode 128 "
    "--schedule-policy fcfs --enable-metrics --enable-cache-report"
)
SMOKE = (
    fixed("smoke-c1", 1, 4, 512, 64, warm=True),
    fixed("smoke-c32", 32, 64, 512, 64, warm=True),
    mixed("smoke-mixed", 8, 16, 32),
)
LOOPS = (
    (fixed("fixed-c1", 1, 14, 512, 128, warm=True), 35),
    (fixed("fixed-c8", 8, 64, 512, 128, warm=True), 25),
    (fixed("fixed-c32", 32, 192, 512, 128, warm=True), 25),
    (fixed("fixed-c128", 128, 512, 512, 128, warm=True), 30),
    (mixed("mixed-c1", 1, 24, 64), 30),
    (mixed("mixed-c8", 8, 64, 128), 30),
    (mixed("mixed-c32", 32, 128, 128), 30),
    (mixed("mixed-c128", 128, 200, 128), 45),
    (varied("varied-c48", 48, 288), 35),
    (fixed("long-output-c16", 16, 48, 1024, 256), 20),
    (fixed("fixed-c32-forbid-end", 32, 192, 512, 128, forbid_end=True), 15),
    (fixed("fixed-c64", 64, 256, 512, 128, warm=True), 20),
)
GATEWAYS = {"vtc": [], "dlpm": ["--set", "dlpm.quantum=512"]}  # name of a request of flood.py
TURNS = (None, "vtc", None, "vtc", "dlpm")
TURN_S = 20
SCHEDULERS = {
    "fcfs": ["--scheduler", "fcfs"],
    "lpm": ["--scheduler", "lpm"],
    "vtc": ["--scheduler", "vtc"],
    "dlpm": ["--scheduler", "dlpm"],
    "stock-lpm": ["--scheduler", "lpm", "--schedule-policy", "lpm"],
    "stock-fcfs": ["--scheduler", "fcfs", "--schedule-policy", "fcfs"],
    "warm-up": ["--scheduler", "fcfs"],
}
PAPER = ("lpm", "vtc", "dlpm", "stock-lpm", "fcfs")
PAPER_RUN_S = 62  # the slowest scheduler, simulated
START_S = 40  # start of a server whose kernels are compiled


class Session:
    """The output directory and the deadline of a session."""

    def __init__(self, out, seconds, *, cpu=False):
        self.out, self.end_s = out, time.monotonic() + seconds
        self.model, self.server, self.cpu = out / "model", CPU if cpu else LIVE, cpu
        out.mkdir(parents=True, exist_ok=True)
        write_model(self.model, CONFIG if cpu else LLAMA_8B)

    def say(self, text):
        left = self.end_s - time.monotonic()
        print(f"[{left:6.1f} s left] {text}", flush=True)

    def has(self, seconds, what):
        """Tell whether a step still fits in the session. Print a message if not."""
        if time.monotonic() + seconds < self.end_s:
            return True
        self.say(f"left out for want of time: {what}")
        return False

    def ran(self, name):
        """Tell whether fairbench has stored a run of this name."""
        return any((self.out / "runs" / name).rglob("summary.json"))

    def keep(self, name, record):
        with (self.out / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


@contextlib.contextmanager
def process(session, name, command, environment=None):
    """Run a process with a log, and kill its process group afterwards."""
    with (session.out / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | (environment or {}),
        )  # fmt: skip
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def wait_ready(session, started, url, seconds):
    begun_s = time.monotonic()
    while time.monotonic() < min(begun_s + seconds, session.end_s) and started.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            session.say(f"{url} ready after {time.monotonic() - begun_s:.0f} s")
            return
        time.sleep(0.5)
    raise TimeoutError(f"not ready: {started.args}")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def stock_server(session, name):
    """Start SGLang with its own first-come, first-served scheduler."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(session.model)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += [*STOCK.split(), *ENGINE.split()]
    with process(session, name, command, {"FAIRBENCH_LOCAL": ""}) as started:
        wait_ready(session, started, url, 240)
        yield url


def closed_loops(session, url, loops):
    for loop, seconds in loops:
        if session.has(seconds, loop.name):
            for record in run(url, loop):
                session.keep("loops", record)
                session.say(_line(record))


def _line(record):
    columns = record["columns"]
    tokens = sum(columns["prompt_tokens"]) + sum(columns["output_tokens"])
    ends = [s + t for s, t in zip(columns["submit_s"], columns["latency_s"], strict=True)]
    decode = sorted(
        (latency - ttft) / (output - 1)
        for latency, ttft, output in zip(
            columns["latency_s"], columns["ttft_s"], columns["output_tokens"], strict=True
        )
    )
    ttft = sorted(columns["ttft_s"])
    return (
        f"{record['run_id']}: {max(ends):.1f} s, {tokens / max(ends):,.0f} tok/s, TPOT P50 "
        f"{1000 * decode[len(decode) // 2]:.2f} ms, TTFT P50 {ttft[len(ttft) // 2]:.3f} s, "
        f"cached {sum(columns['cached_tokens'])}"
    )


def gateways(session, worker, seconds):
    """Flood a stock server behind a router, alternately with and without a gateway."""
    for turn, policy in enumerate(TURNS):
        if not session.has(seconds + 10, f"gateway {policy}"):
            continue
        url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "fairbench", "serve", "--worker-url", worker]
        command += ["--port", str(port), "--scheduler", "fcfs", "--no-client-limit"]
        if policy:
            command += ["--gateway", policy, "--max-inflight-per-worker", "auto", *GATEWAYS[policy]]
        with process(session, f"serve-{turn}", command) as started:
            wait_ready(session, started, url, 30)
            summary = flood.run(url, seconds, turn)
        session.keep("gateways", {"gateway": policy, **summary})
        session.say(f"gateway {policy}: {summary}")
        time.sleep(1)


def live(session, name, workload, seconds, *more):
    """Run fairbench with a server of its own."""
    runs = session.out / "runs" / name
    command = [sys.executable, "-m", "fairbench", "run", "--backend", "sglang"]
    command += ["--model", str(session.model), *SCHEDULERS[name], "--dp", "1"]
    command += ["--workload", str(HERE / workload), "--scenario", "s1", "--disable-tqdm"]
    command += [f"--server-arg={argument}" for argument in session.server]
    command += ["--load-format", "dummy", "--result-dir", str(runs), *more]
    begun_s = time.monotonic()
    with process(session, f"live-{name}", command) as started:
        try:
            started.wait(
                min(seconds * (10 if session.cpu else 1), session.end_s - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            session.say(f"live {name}: not over after {seconds} s")
    tail = (session.out / f"live-{name}.log").read_text(errors="replace")[-1500:]
    took_s = time.monotonic() - begun_s
    session.say(f"live {name}: exit {started.returncode} after {took_s:.0f} s\n{tail}")


def smoke(session):
    with stock_server(session, "stock") as url:
        closed_loops(session, url, [(loop, 10) for loop in SMOKE])
        gateways(session, url, 12)
    if session.has(60, "live"):
        live(session, "dlpm", "contended.toml", 120, "--duration", "12")


def timing(session):
    with stock_server(session, "stock") as url:
        run(url, fixed("warm-up", 64, 128, 512, 32))
        closed_loops(session, url, LOOPS)
        gateways(session, url, TURN_S)


def live_all(session):
    for name in [one for one in SCHEDULERS if one != "warm-up"]:
        if not session.ran(name) and session.has(85, f"live {name}"):
            live(session, name, "contended.toml", 150)


def paper(session):
    """Measure the DLPM paper's setting on one server: two seeds per scheduler, as time allows."""
    whole, short = ("--window", "whole"), ("--duration", "3")
    if not session.ran("warm-up"):  # compiles kernels, and shows that everything starts
        live(session, "warm-up", "paper.toml", 240, *whole, *short)
        if not session.ran("warm-up"):
            raise SystemExit("the first run failed")
    more = whole + short if session.cpu else whole
    for name in PAPER:
        for seeds in (2, 1):
            seconds = START_S + seeds * PAPER_RUN_S
            if name not in SCHEDULERS or session.ran(name):
                continue
            if session.has(seconds, f"{name}, {seeds} seeds"):
                live(session, name, "paper.toml", 2 * seconds, *more, "--num-runs", str(seeds))


PLANS = {"smoke": smoke, "timing": timing, "live": live_all, "paper": paper}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("plan", choices=PLANS)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--seconds", type=float, default=3600)
    arguments.add_argument("--only", nargs="*", help="live: these schedulers")
    arguments.add_argument(
        "--cpu", action="store_true", help="paper: try the plan on a CPU, briefly"
    )
    given = arguments.parse_args()
    if given.only:
        for name in set(SCHEDULERS) - {"warm-up", *given.only}:
            del SCHEDULERS[name]
    session = Session(given.out, given.seconds, cpu=given.cpu)
    try:
        PLANS[given.plan](session)
    finally:
        shutil.rmtree(session.model)


if __name__ == "__main__":
    main()
