"""Measure the CPU time and the batch of an engine's step: python -m tests.benchmarks.plugin_step

Run it in the environment of ``tests/vllm_cpu/install.sh``, or with ``--engine sglang`` in that of
``tests/sglang_cpu/install.sh``. The engine's own scheduler, queue, cache and memory run without a
model. Of 32 clients, 256 requests run and 256 wait. Prompts have 256 tokens, answers 60 to 140.
``stock`` is the engine's FCFS without the plugin, to which ratios refer.

A vLLM step is ``schedule`` and ``update_from_output``; an SGLang step is its plan and the
processing of the result. Schedulers take turns of a few steps. The time is the lower quartile over
all steps in ms, because other processes disturb the rest. For SGLang, it is the mean, because steps
for prompts and for outputs alternate. The last two columns, only for vLLM, are the steps and the
mean batch of 48 requests of 333 tokens.

``--count`` counts instructions of Python's bytecode (in thousands) instead, which no other process
disturbs. The scheduler's clock is virtual: a step takes 30 ms plus 0.05 ms per prompt token.

``--pool`` is the size of the KV pool in tokens. ``vtc+evict`` is ``vtc`` with the eviction policy
``max-min``, and ``vtc+share`` also has ``memory.share``; both run only if ``--schedulers`` names
them.
"""

import argparse
import random
import sys
from itertools import count
from statistics import mean
from time import process_time
from types import SimpleNamespace
from unittest import mock

from fairbench.hardware.engine_params import VLLMLimits
from fairbench_load.plugin_config import OWN_ORDER, Evicting
from tests.benchmarks.plugin_pass import Timer
from tests.sim.vllm_plugin_streams import fair_engine
from tests.sim.vllm_seam import VERSION, RealEngine

RUNNING, WAITING, CLIENTS = 256, 256, 32
TURN, WARM_UP = 8, 60  # numbers of steps
STEP_S, PROMPT_TOKEN_S = 0.03, 5e-5
SCHEDULERS = ("stock", "fcfs", "vtc", "dlpm", "lpm", "edf")
SHARE = "share"
WITH_MEMORY = ("vtc+evict", "vtc+share", "lpm+evict", "lpm+share")


class Instructions(Timer):
    """The number of bytecode instructions of a method's calls, in millions."""

    def __call__(self, *arguments, **named):
        outer = sys.gettrace()
        sys.settrace(self._entered)
        try:
            return self._method(*arguments, **named)
        finally:
            sys.settrace(outer)

    def _entered(self, frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame, event, argument):
        self.took_s += (event == "opcode") / 1e6
        return self._stepped


def engine_of(local, limits, now_s=process_time):
    if local == "stock":
        return RealEngine(limits)
    name, settings, evicting = plugged(local)
    return fair_engine(limits, name, settings, now_s, evicting=evicting)


def plugged(local):
    """Return the scheduler, the settings and the eviction policy of a table row."""
    name, _, memory = local.partition("+")
    if not memory:
        return name, {}, OWN_ORDER
    settings = {"memory.share": True} if memory == SHARE else {}
    return name, settings, Evicting("max-min", tuple(map(client_of, range(CLIENTS))))


def client_of(number):
    return f"client-{number}"


class Busy:
    """An engine whose queue is kept full."""

    now_s = 0.0  # the scheduler's clock

    def __init__(self, local, timer, pool, *, asynchronous):
        limits = VLLMLimits(pool, 8_192, RUNNING, async_scheduling=asynchronous)
        self._engine = engine_of(local, limits, lambda: self.now_s)
        names = ("schedule", "update_from_output")
        self._start([timer(self._engine.scheduler, name) for name in names])

    def _start(self, timers):
        self._timers, self._random, self._numbers = timers, random.Random(3), count()
        self.steps = []

    def turn(self, steps):
        """Run ``steps`` steps, and keep their CPU seconds."""
        for _ in range(steps):
            while self._waiting() < WAITING:
                self._ask(*self._drawn())
            for timer in self._timers:
                timer.took_s = 0.0
            self._step()
            self.steps.append(sum(timer.took_s for timer in self._timers))

    def _drawn(self):
        draw = self._random
        prompt, output = draw.choices(range(1, 30_000), k=256), [7] * draw.randint(60, 140)
        return next(self._numbers), prompt, output, client_of(draw.randrange(CLIENTS))

    def _waiting(self):
        return len(self._engine.scheduler.waiting)

    def _ask(self, number, prompt, output, client):
        request = self._engine.request(number, prompt, output, client=client)
        self._engine.scheduler.add_request(request)

    def _step(self):
        step = self._engine.step()
        self._pass_time(sum(step[0].values()) - len(step[0]))

    def _pass_time(self, prompt_tokens):
        self.now_s += STEP_S + max(prompt_tokens, 0) * PROMPT_TOKEN_S

    @property
    def step_ms(self):
        times = sorted(self.steps[WARM_UP:])
        return 1000 * times[len(times) // 4]


class BusySGLang(Busy):
    """An SGLang scheduler without overlap scheduling, whose queue is kept full."""

    def __init__(self, local, timer, pool, *, asynchronous):
        from fairbench_engines.sglang.hooks import Hooks
        from fairbench_load.plugin_config import plugin_config
        from tests.sim import sglang_seam

        limits = {"chunk": 8_192, "max_prefill": 8_192, "slots": RUNNING}
        hooks = None
        if local != "stock":
            name, settings, evicting = plugged(local)
            config = plugin_config(name, settings, None, evicting)
            hooks = Hooks(config, sglang_seam.VERSION)
        self._configured = lambda: sglang_seam.configured(
            "fcfs", hooks, conservativeness=1.0, match_limit=128, **limits
        )
        with self._configured():
            self._engine = sglang_seam.RealEngine(
                "fcfs", pool=pool, ignore_eos=True, hooks=hooks, longest=2_000, **limits
            )
            self._model = timer(self._engine, "_next")
            self._start([timer(self._engine, name) for name in ("plan", "complete")])

    def turn(self, steps):
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        with self._configured(), mock.patch("fairbench_engines.sglang.hooks.time", clock):
            super().turn(steps)

    @property
    def step_ms(self):
        return 1000 * mean(self.steps[WARM_UP:])

    def _waiting(self):
        return len(self._engine.scheduler.waiting_queue)

    def _ask(self, number, prompt, output, client):
        self._engine.submit(number, prompt, output, len(output), client)

    def _step(self):
        self._model.took_s = 0.0
        batch = self._engine.plan()
        batch.launch_ts = self.now_s  # SGLang sets this time in ``run_batch``
        self._pass_time(batch.extend_num_tokens if batch.forward_mode.is_extend() else 0)
        self._engine.complete(batch)
        # Instructions count a call inside another call once
        if not isinstance(self._model, Instructions):
            self._timers[1].took_s -= self._model.took_s


def batch_of(local, *, asynchronous):
    """Return how many steps 48 requests need, and their mean batch."""
    engine = engine_of(local, VLLMLimits(400_000, 1_536, async_scheduling=asynchronous))
    for number in range(48):
        prompt = range(128 * number, 128 * number + 128)
        request = engine.request(number, prompt, [7] * 333, client=f"client-{number % 4}")
        engine.scheduler.add_request(request)
    sizes = []
    while (step := engine.step()) is not None:
        sizes.append(len(step[0]))
    return len(sizes), sum(sizes) / len(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--schedulers", nargs="+", default=SCHEDULERS, choices=SCHEDULERS + WITH_MEMORY
    )
    parser.add_argument("--engine", default="vllm", choices=["vllm", "sglang"])
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--pool", type=int, default=1_000_000)
    args = parser.parse_args()
    if args.engine == "sglang":
        measure(args, BusySGLang, asynchronous=False)
    else:
        for asynchronous in (True, False):
            measure(args, Busy, asynchronous=asynchronous)


def measure(args, kind, *, asynchronous):
    """Print a row for each scheduler."""
    timer = Instructions if args.count else Timer
    engines = {
        local: kind(local, timer, args.pool, asynchronous=asynchronous) for local in args.schedulers
    }
    for engine in engines.values():
        engine.turn(WARM_UP)
    for _ in range(args.turns):
        for engine in engines.values():
            engine.turn(TURN)
    mode = "asynchronous" if asynchronous else "synchronous"
    first = next(iter(engines.values())).step_ms
    for local, engine in engines.items():
        cells = [mode, local, f"{engine.step_ms:.2f}", f"{engine.step_ms / first:.2f}"]
        if args.engine == "vllm":
            steps, size = batch_of(local, asynchronous=asynchronous)
            cells = [VERSION, *cells, str(steps), f"{size:.1f}"]
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
