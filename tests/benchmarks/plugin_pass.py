"""Measure the CPU time of a scheduling pass: python -m tests.benchmarks.plugin_pass ENGINE

ENGINE is ``sglang`` (prefix tree in Python) or ``sglang-rust`` in the environment of
``tests/sglang_cpu/install.sh``, or ``vllm`` in that of ``tests/vllm_cpu/install.sh``. The engine's
own scheduler, queue, cache and memory run without a model, sixteen requests at a time, while the
queue is kept at a fixed length. Prompts have 1,500 tokens. In ``cold``, no two prompts share a
token. In ``warm``, 1,000 tokens of each prompt are one of 64 cached prefixes. ``stock`` is the
engine's own FCFS without the plugin.

Columns are medians in milliseconds of a pass that admits a request, a pass while the batch is full,
and an arrival. A pass is ``_get_new_batch_prefill_raw`` in SGLang and ``schedule`` in vLLM,
including the engine's own work. Compare only rows of one run, because the load of the machine
changes the times. ``--profile`` prints a profile of one row.
"""

import argparse
import cProfile
import pstats
import random
from functools import partial
from itertools import count
from statistics import median
from time import process_time

PROMPT, PREFIX, PREFIXES = 1500, 1000, 64
SLOTS, POOL, BUDGET = 16, 160_000, 8192
CLIENTS = 32
PASSES = 60
SCHEDULERS = ("stock", "lpm", "dlpm", "vtc")


class Load:
    """An endless source of requests with random token ids."""

    def __init__(self, warm):
        self._random, self._warm = random.Random(7), warm
        self._prefixes = [self._tokens(PREFIX) for _ in range(PREFIXES)]
        self._numbers = count()

    def _tokens(self, number):
        return self._random.choices(range(1, 30_000), k=number)

    def request(self):
        """Return the number, client, prompt and output length of a request."""
        number, client = next(self._numbers), self._random.randrange(CLIENTS)
        prompt = self._tokens(PROMPT)
        if self._warm:
            prompt[:PREFIX] = self._prefixes[self._random.randrange(PREFIXES)]
        return number, f"client-{client}", prompt, self._tokens(self._random.randint(4, 12))


class SGLang:
    """SGLang's scheduler, alone or with the plugin's hooks."""

    def __init__(self, local, tree="radix"):
        from fairbench_engines.sglang.hooks import Hooks
        from fairbench_load.plugin_config import plugin_config
        from tests.sim.sglang_seam import VERSION, RealEngine, configured

        limits = {"chunk": BUDGET, "max_prefill": BUDGET, "slots": SLOTS}
        hooks = None if local == "stock" else Hooks(plugin_config(local, {}), VERSION)
        self._stack = configured("fcfs", hooks, conservativeness=1.0, match_limit=128, **limits)
        self._engine = RealEngine(
            "fcfs", pool=POOL, ignore_eos=True, hooks=hooks, longest=2 * PROMPT, tree=tree, **limits
        )
        self._timer = Timer(self._engine.scheduler, "_get_new_batch_prefill_raw")

    def submit(self, number, client, prompt, output):
        self._engine.submit(number, prompt, output, len(output), client)

    def iterate(self):
        """Run one iteration. Return the seconds of its pass, and whether a request was admitted."""
        self._timer.took_s = 0.0
        batch = self._engine.plan()
        admitted = batch is not None and batch.forward_mode.is_extend()
        self._engine.complete(batch)
        return self._timer.took_s, admitted

    @property
    def waiting(self):
        return len(self._engine.scheduler.waiting_queue)

    def close(self):
        self._stack.close()


class VLLM:
    """vLLM's scheduler, or the plugin's, which derives from it."""

    def __init__(self, local):
        from fairbench.hardware.engine_params import VLLMLimits
        from tests.sim.vllm_plugin_streams import fair_engine
        from tests.sim.vllm_seam import RealEngine, admitted

        self._admitted = admitted
        limits = VLLMLimits(pool_tokens=POOL, max_num_seqs=SLOTS, max_num_batched_tokens=BUDGET)
        if local == "stock":
            self._engine = RealEngine(limits)
        else:
            self._engine = fair_engine(limits, local, {}, process_time)
        self._timer = Timer(self._engine.scheduler, "schedule")

    def submit(self, number, client, prompt, output):
        request = self._engine.request(number, prompt, output, client=client)
        started_s = process_time()
        self._engine.scheduler.add_request(request)
        return process_time() - started_s

    def iterate(self):
        """Run one step. Return the seconds of its pass, and whether a request was admitted."""
        self._timer.took_s = 0.0
        plan = self._engine.plan()
        admitted = bool(self._admitted(plan))
        self._engine.complete(plan)
        return self._timer.took_s, admitted

    @property
    def waiting(self):
        return len(self._engine.scheduler.waiting)

    def close(self):
        """Do nothing, because no global state was changed."""


class Timer:
    """The total CPU seconds of a method's calls. If ``profile`` is set, it records them, too."""

    profile = None

    def __init__(self, owner, name):
        self.took_s = 0.0
        self._method = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *arguments, **named):
        started_s = process_time()
        if Timer.profile is not None:
            Timer.profile.enable()
        try:
            return self._method(*arguments, **named)
        finally:
            if Timer.profile is not None:
                Timer.profile.disable()
            self.took_s += process_time() - started_s


def measure(engine, load, waiting, profile=None):
    """Return median ms of an admitting pass, of a pass in a full batch, and of an arrival."""
    admitting, full, arrivals = [], [], []

    def fill():
        while engine.waiting < waiting:
            request = load.request()
            started_s = process_time()
            inner_s = engine.submit(*request)
            arrivals.append(process_time() - started_s if inner_s is None else inner_s)

    fill()
    for _ in range(3 * PREFIXES):  # until every prefix is cached and the pool is full
        engine.iterate()
        fill()
    Timer.profile = profile
    while len(admitting) < PASSES or len(full) < PASSES:
        took_s, admitted = engine.iterate()
        (admitting if admitted else full).append(took_s)
        fill()
    Timer.profile = None
    return [1000 * median(times) for times in (admitting, full, arrivals)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["sglang", "sglang-rust", "vllm"])
    parser.add_argument("--waiting", type=int, nargs="+", default=[800, 2000])
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, choices=SCHEDULERS)
    parser.add_argument("--load", nargs="+", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    make = {"sglang": SGLang, "sglang-rust": partial(SGLang, tree="rust"), "vllm": VLLM}[
        args.engine
    ]
    print("| scheduler | load | waiting | pass, ms | batch full, ms | arrival, ms |")
    print("|---|---|---|---|---|---|")
    for local in args.schedulers:
        for load in args.load:
            for waiting in args.waiting:
                engine = make(local)
                profile = cProfile.Profile() if args.profile else None
                row = measure(engine, Load(load == "warm"), waiting, profile)
                engine.close()
                print(f"| {local} | {load} | {waiting} |", *(f"{ms:.2f} |" for ms in row))
                if profile is not None:
                    pstats.Stats(profile).sort_stats("cumulative").print_stats(40)


if __name__ == "__main__":
    main()
