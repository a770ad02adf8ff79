"""Test the theorems of DLPM ([DLPM] §4.2, §A.1) on a toy engine."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.dlpm import DLPM
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy import ToyEngine
from tests.schedulers.local.local_toy_load import (
    DEPTH,
    DLPM_UNIT,
    LARGEST_INPUT,
    QUANTUM,
    Mix,
    on_and_off,
    overload,
    toy,
)
from tests.schedulers.local.local_trace import max_gap, max_lag, max_wait
from tests.slow_params import slow

DLPMS = [
    DLPM.Params(quantum=QUANTUM),
    DLPM.Params(quantum=QUANTUM, no_room="skip"),
    DLPM.Params(quantum=QUANTUM, rejoin="min0"),
]


class Credits:
    """A check of q_i after every event. What the log does not explain must be refills."""

    def __init__(self, engine: ToyEngine, quantum: int) -> None:
        self._engine, self._quantum = engine, quantum
        self._paid: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self.lowest, self.highest = 0, 0
        engine.on_instant = self._look

    def _look(self) -> None:
        credit = self._engine.scheduler.credit
        self.lowest = min(self.lowest, *credit.values())
        self.highest = max(self.highest, *credit.values())
        for client, now in credit.items():
            paid = self._engine.trace.service_of(client)
            if client in self._last:
                # W = q(t1) - q(t2) + K * Q^u, where K is a whole number of refills ([gaps] A11).
                refills, rest = divmod(
                    now - self._last[client] + paid - self._paid[client], self._quantum
                )
                assert rest == 0
                assert refills >= 0
        self._last = dict(credit)
        self._paid = {client: self._engine.trace.service_of(client) for client in credit}


@pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
@pytest.mark.parametrize("seed", range(3))
def test_credit_stays_within_its_bounds_and_a_1_holds(params, seed):
    engine = toy(DLPM(params))
    watch = Credits(engine, QUANTUM)
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=200)
    assert -DLPM_UNIT < watch.lowest < 0 < watch.highest <= QUANTUM


@pytest.mark.parametrize("quantum", [20, QUANTUM, 2000])
@pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
@pytest.mark.parametrize("seed", range(2))
def test_theorem_4_1_between_backlogged_clients(params, seed, quantum):
    engine = toy(DLPM(replace(params, quantum=quantum)), "abc")
    overload(engine, Mix(seed, "abc"), "abc", steps=200)
    assert 0 < max_gap(engine.trace) <= 2 * (DLPM_UNIT + quantum)


@pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
@pytest.mark.parametrize("seed", range(3))
def test_theorems_4_2_and_a_2(params, seed):
    engine = toy(DLPM(params))
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=300)
    assert max_lag(engine.trace) <= 2 * (DLPM_UNIT + QUANTUM)
    assert max_wait(engine.trace, "d") <= 2 * 3 * (DLPM_UNIT + QUANTUM)


def test_a_larger_quantum_is_less_fair():
    """A larger quantum trades fairness for throughput ([DLPM] §4.1)."""
    gaps = []
    for quantum in (50, 5000):
        engine = toy(DLPM(DLPM.Params(quantum=quantum)), "ab")
        overload(engine, Mix(3, "ab"), "ab", steps=300)
        gaps.append(max_gap(engine.trace))
    assert gaps[0] < gaps[1]


def test_strict_is_fair_and_relaxed_conserves_work():
    """[gaps] A4: large requests rarely fit, and small ones always do."""
    results = {}
    for refill in ("strict", "relaxed"):
        params = DLPM.Params(quantum=QUANTUM, no_room="skip", refill=refill)
        engine, call, rng = toy(DLPM(params), "ab"), Calls(), random.Random(0)
        for _ in range(800):
            while engine.waiting("b") < DEPTH:
                engine.submit(call("b", tail=20, max_new=rng.randint(20, 60)))
            while engine.waiting("a") < 3:
                engine.submit(call("a", tail=LARGEST_INPUT, max_new=500))
            engine.step()
        results[refill] = engine
    strict, relaxed = results["strict"], results["relaxed"]
    bound = 2 * (DLPM_UNIT + QUANTUM)
    assert max_gap(strict.trace) <= bound < max_gap(relaxed.trace)
    assert strict.idle_steps > 100
    assert relaxed.idle_steps == 0
    total = {r: sum(e.trace.service_of(c) for c in "ab") for r, e in results.items()}
    assert total["relaxed"] > total["strict"]


@pytest.mark.parametrize(
    ("rejoin", "least", "most"),
    [("keep", 0.9, 1.1), ("paper_zero", 5, 6), *slow(("min0", 0.9, 1.1))],
)
def test_leaving_and_returning_does_not_pay(rejoin, least, most):
    """[gaps] A5: a, with one long prompt at a time, is compared with the backlogged b.

    If its debt is erased, a gets 21,453 for every two quanta of b.
    """
    engine = ToyEngine(DLPM(DLPM.Params(quantum=2000, rejoin=rejoin)), 22_000, "ab", documents=0)
    call = Calls()
    for _ in range(1000):
        if not engine.waiting("a") and not engine.running("a"):
            engine.submit(call("a", tail=21_449, max_new=2))
        while engine.waiting("b") < 120:
            engine.submit(call("b", tail=200, max_new=2))
        engine.step()
    ratio = engine.trace.service_of("a") / engine.trace.service_of("b")
    assert least < ratio < most


@pytest.mark.slow
@pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
@pytest.mark.parametrize("depth", [50, 120])
def test_theorem_4_1_on_many_seeds(params, depth):
    for seed in range(30):
        engine = toy(DLPM(params), "abc")
        overload(engine, Mix(seed, "abc"), "abc", steps=400, depth=depth)
        assert max_gap(engine.trace) <= 2 * (DLPM_UNIT + QUANTUM)


class TestOverCommittedMemory:
    """[gaps] E1: [VTC]'s "at most M tokens after the last admission" needs full reservation."""

    OUTPUTS = (250, 333, 500, 1000)
    M = 1000 + 4  # one token of input each

    def run(self, scheduler: LocalScheduler, *, reserve: bool) -> ToyEngine:
        engine, call = ToyEngine(scheduler, self.M, "ab", reserve=reserve), Calls()
        for output in self.OUTPUTS:
            engine.submit(call("a", max_new=1000), output)
        for _ in range(self.M):
            engine.step()
        return engine

    def test_a_client_decodes_more_than_m_tokens_after_its_last_admission(self):
        decoded = sum(self.OUTPUTS)
        assert decoded == 2083
        over = self.run(DLPM(DLPM.Params(quantum=1)), reserve=False)
        assert over.largest_decode == decoded > self.M
        assert self.run(DLPM(DLPM.Params(quantum=1)), reserve=True).largest_decode <= self.M

    def test_only_the_observed_form_of_u_bounds_the_debt(self):
        engine, call = ToyEngine(DLPM(DLPM.Params(quantum=8)), self.M, "ab", reserve=False), Calls()
        watch = Credits(engine, 8)
        for output in self.OUTPUTS:
            engine.submit(call("a", max_new=1000), output)
        for _ in range(self.M):
            engine.step()
        remaining = sum(self.OUTPUTS)  # at the last admission, no token had been decoded
        assert watch.lowest < -(1 + 2 * self.M)
        assert -(1 + 2 * remaining) < watch.lowest
