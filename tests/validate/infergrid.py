"""InferGrid's experiment with a fair gateway queue, reconstructed from its code and logs.

    python tests/validate/infergrid.py

Source: coconut-labs/infergrid @a8d3ea8, results/gate2_fairness_20260419. For 120 s, a heavy client
sends 32 requests a second and a well-behaved client sends one. A request passes three queues:

- the load generator's 256 connections, first come, first served; the client gives up after 60 s
- the gateway's own queue, with its ``max_concurrent`` and policy; 503 after 30 s, 429 over 512 of a
  client
- the gateway's 100 connections to the engine, first come, first served, its HTTP library's default
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.clock import ARRIVE, DECIDE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm import VLLMReplica
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.hardware.timing import KVPool, TimingProfile
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.registry import policy_class
from fairbench.schedulers.gateway.saturation import Concurrency
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.front import SimFleet

FLOODER, QUIET = "flooder", "quiet"
OUTPUT_TOKENS, PROMPT_TOKENS = 125, 60
PATIENCE_S, ADMISSION_S, BUDGET, ENGINE_CONNECTIONS = 60.0, 30.0, 512, 100
# Milliseconds of a step by its number of requests, for engine and gateway together: 12.6 for 1 and
# 30.2 for 100 in the runs without a fair queue. All other values here are predicted from these.
STEP = {"c0": 12.46, "c_w": 1e-6, "c_T": 1e-9, "p": 1, "c_A": 0, "c_K": 0}
STEP |= {"c_nd": 0.177, "c_npf": 0}
PROFILE = TimingProfile("gate2", STEP, 0.0, "two runs", KVPool(1, 0, 1, 0.5, 400_000))


@dataclass(frozen=True)
class Arm:
    """An arm of the experiment.

    ``limit`` is the number of requests behind the gateway. The load generator has its own
    connections.
    """

    policy: str
    limit: float
    connections: float = 256
    flooder_per_s: float = 32.0


class OneServer(Router):
    name = "one-server"

    def route(self, request, now_s):
        return 0


class Experiment:
    """The run of one arm. ``ttft_s`` is by client, and ``lost`` counts the other outcomes."""

    def __init__(self, arm: Arm, seed: int = 42) -> None:
        self.clock, self.arm = Clock(), arm
        self.ttft_s = {FLOODER: [], QUIET: []}
        self.lost = Counter()
        log = ServiceLog([FLOODER, QUIET])
        limits = VLLMLimits(400_000)
        self.worker = VLLMReplica(
            WorkerParts(0, self.clock, FCFS(FCFS.Params()), PROFILE, log), limits
        )
        self.fleet = SimFleet([self.worker])
        self.pool = self._queue("fcfs", arm.connections)
        self.gate = self._queue(arm.policy, arm.limit)
        self.adapter = self._queue("fcfs", ENGINE_CONNECTIONS)
        self.present = Counter()  # limit of each client at the gateway
        self.at_gate, self.alive, self.over = set(), set(), []
        self._due = False
        for client, per_s in ((FLOODER, arm.flooder_per_s), (QUIET, 1.0)):
            rng = np.random.default_rng([seed, client == QUIET])
            times = np.cumsum(rng.exponential(1 / per_s, int(200 * per_s))) if per_s else []
            for number, at in enumerate(at for at in times if at < 120):
                key = 2 * number + (client == QUIET)
                prompt = (Segment(f"{key}", PROMPT_TOKENS),)
                request = Request(key, client, key, 0, prompt, PROMPT_TOKENS, OUTPUT_TOKENS, at)
                self._at(at, partial(self.submit, request))

    def _queue(self, policy, limit):
        kind = policy_class(policy)
        detector = Concurrency(Concurrency.Params(requests=min(limit, 10**9)))
        setup = Setup(fleet=self.fleet)
        detector.prepare(setup)
        return GatewayQueue(kind(kind.Params()), OneServer(), detector)

    def _at(self, time_s, action):
        self.clock.at(round(time_s * PS_PER_S), ARRIVE, 0, action)

    @property
    def now_s(self):
        return self.clock.now_ps / PS_PER_S

    def run(self):
        while self.clock.next_ps() is not None:
            self.clock.step()
        return self

    # the client

    def submit(self, request):
        self.alive.add(request)
        self.pool.enter(request, self.now_s)
        if inf > PATIENCE_S:
            self._at(request.arrival_s + PATIENCE_S, partial(self.give_up, request))
        self.soon()

    def give_up(self, request):
        if request not in self.alive:
            return
        if request in set(self.pool):
            self.pool.withdraw(request)
            self.alive.remove(request)
            self.lost["gave up"] += 1
        else:
            self.leave(request, "gave up")  # the gateway does not notice

    def leave(self, request, why):
        """Free the connection of a client that has its answer or has given up."""
        self.alive.remove(request)
        self.pool.finish(request, 0, self.now_s)
        if why:
            self.lost[why] += 1
        self.soon()

    # the gateway

    def arrive(self, request):
        if self.present[request.client] >= BUDGET:
            self.over.append(partial(self.leave, request, "429"))
            return
        if not self.gate.enter(request, self.now_s):
            self.over.append(partial(self.leave, request, "429"))
            return
        self.present[request.client] += 1
        self.at_gate.add(request)
        self._at(self.now_s + ADMISSION_S, partial(self.time_out, request))

    def time_out(self, request):
        if request in self.at_gate:
            self.at_gate.remove(request)
            self.gate.withdraw(request)
            self.present[request.client] -= 1
            if request in self.alive:
                self.leave(request, "503")

    def admit(self, request):
        self.at_gate.remove(request)
        if request in self.alive:
            self.adapter.enter(request, self.now_s)
        else:
            self.over.append(partial(self.depart, request))

    def depart(self, request):
        self.gate.finish(request, OUTPUT_TOKENS, self.now_s)
        self.present[request.client] -= 1

    # the engine

    def serve(self, request):
        output = Segment(f"out-{request.request_id}", OUTPUT_TOKENS)
        self.worker.submit(Sequence(request, output, self.clock.now_ps, self.answered))

    def answered(self, sequence):
        request = sequence.request
        self.adapter.finish(request, sequence.produced, self.now_s)
        self.depart(request)
        if request in self.alive:
            first_s = sequence.first_token_ps / PS_PER_S
            self.ttft_s[request.client].append(first_s - request.arrival_s)
            self.leave(request, "")
        self.soon()

    def soon(self):
        if not self._due:
            self._due = True
            self.clock.at(self.clock.now_ps, DECIDE, -1, self.pump)

    def pump(self):
        """Advance every request that can proceed."""
        self._due = False
        now_s = self.now_s
        self.pool.release(now_s, lambda request, worker: self.arrive(request))
        self.gate.release(now_s, lambda request, worker: self.admit(request))
        self.adapter.release(now_s, lambda request, worker: self.serve(request))
        over, self.over = self.over, []
        for act in over:
            act()
        if over:
            self.soon()


ARMS = {
    "alone": Arm("fcfs", 256, flooder_per_s=0.0),
    "fifo, 256 under way": Arm("fcfs", 256),
    "infergrid-drr, 256": Arm("infergrid-drr", 256),
    "infergrid-drr, 16": Arm("infergrid-drr", 16),
    "drr, 256": Arm("drr", 256),
    "drr, 16": Arm("drr", 16),
    "fifo, 256, clients without a limit": Arm("fcfs", 256, inf),
    "drr, 256, clients without a limit": Arm("drr", 256, inf),
    "drr, 100, clients without a limit": Arm("drr", 100, inf),
    "drr, 64, clients without a limit": Arm("drr", 64, inf),
    "drr, 16, clients without a limit": Arm("drr", 16, inf),
    "token-bucket": Arm("token-bucket", 256),
}


def line(name: str) -> str:
    """Return one row of the table."""
    found = Experiment(ARMS[name]).run()
    cells = []
    for client in (QUIET, FLOODER):
        times = found.ttft_s[client]
        cells += [f"{np.percentile(times, p):.3g}" if times else "-" for p in (50, 99)]
    cells += [f"{len(times):,}" for times in found.ttft_s.values()]
    lost = ", ".join(f"{count:,} {why}" for why, count in sorted(found.lost.items()))
    return f"| {name} | {' | '.join(cells)} | {lost or '-'} |"


if __name__ == "__main__":
    for each in ARMS:
        print(line(each), flush=True)
