"""Test two data-parallel ranks on SGLang's own classes, under a flood of 40 against 4."""

import os
from collections import Counter
from statistics import mean
from types import SimpleNamespace
from unittest import mock

import pytest

from fairbench_engines.ranks import FOLDER
from fairbench_engines.sglang.hooks import Hooks
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import VERSION, RealEngine, configured, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]
PROMPT, OUTPUT, STEP_S = 48, 16, 0.1
SETTINGS = {"dlpm": {"dlpm.quantum": 500}}


class Ranks:
    """Engines with ``slots`` each, whose clients ask again as soon as they are answered.

    SGLang's classes are wrapped once, so each hook asks the rank whose turn it is.
    """

    def __init__(self, local, ranks, slots, folder):
        self.now_s, self._number = 0.0, 0
        every = [
            Hooks(plugin_config(local, SETTINGS.get(local, {})), VERSION) for _ in range(ranks)
        ]
        for hooks in every:
            hooks._now_s = hooks.admission.now_s = lambda: self.now_s
        self._turn = every[0]
        limits = {"chunk": 2_048, "max_prefill": 4_096, "slots": slots}
        self._configured = configured("fcfs", self, conservativeness=1.0, match_limit=0, **limits)
        self.engines = []
        for rank, hooks in enumerate(every):
            self._turn = hooks
            engine = RealEngine("fcfs", pool=20_000, ignore_eos=True, hooks=hooks, **limits)
            with mock.patch.dict(os.environ, {FOLDER: str(folder)} if folder else {}):
                hooks.home.ranks = hooks._link(SimpleNamespace(dp_rank=rank))
            self.engines.append((engine, hooks))
        self.sent = {}  # SGLang's request -> client, rank, time
        self.tokens, self.waits = Counter(), []

    def by_target(self):
        """Return hooks that call the hooks of the rank whose turn it is."""

        def asked(target):
            return SimpleNamespace(
                method=lambda *given, **named: self._turn.by_target()[target].method(
                    *given, **named
                )
            )

        return {target: asked(target) for target in self._turn.by_target()}

    def close(self):
        self._configured.close()

    def ask(self, client, rank):
        number, self._number = self._number, self._number + 1
        engine, self._turn = self.engines[rank]
        prompt = range(1000 * number, 1000 * number + PROMPT)
        req = engine.submit(number, prompt, [7] * (OUTPUT - 1) + [8], OUTPUT, client)
        self.sent[req] = client, rank, self.now_s

    def flood(self, steps, lights):
        """Return the light client's share, and its mean seconds from request to answer."""
        for number in range(40):
            self.ask("heavy", number % len(self.engines))
        for number in range(4):
            self.ask("light", lights[number % len(lights)])
        for _ in range(steps):
            self.now_s += STEP_S
            for engine, hooks in self.engines:
                self._turn = hooks
                batch = engine.plan()
                for req in engine.complete(batch) if batch is not None else ():
                    client, rank, since_s = self.sent.pop(req)
                    self.tokens[client] += PROMPT + 2 * OUTPUT
                    if client == "light":
                        self.waits.append(self.now_s - since_s)
                    self.ask(client, rank)
        return self.tokens["light"] / self.tokens.total(), mean(self.waits)


def flooded(local, ranks, slots, folder):
    made = Ranks(local, ranks, slots, folder)
    try:
        return made.flood(600, [0])
    finally:
        made.close()


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_a_light_client_at_one_of_two_ranks_is_served_as_by_one_rank(local, tmp_path):
    """Two ranks of 2 slots are compared with one of 4. All of the light client is at rank 0."""
    alone, alone_s = flooded(local, 1, 4, None)
    apart, apart_s = flooded(local, 2, 2, None)
    shared, shared_s = flooded(local, 2, 2, tmp_path)
    assert apart == pytest.approx(0.25, abs=0.05)
    assert shared == pytest.approx(0.5, abs=0.05)
    # On one rank, dlpm runs all four requests at once, so that the light client often does not
    # wait.
    assert alone == pytest.approx(0.5, abs=0.05) or local == "dlpm"
    assert shared_s < 1.15 * alone_s
    assert shared_s < 0.7 * apart_s
