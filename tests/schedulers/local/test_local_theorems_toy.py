"""The theorems of VTC (001 section 4.1) and DLPM (000 section 4.2) on a toy engine.

Queues are topped up deep enough that no client runs dry inside a pass: a client that does is not
backlogged, and what looks like a violation is then the test's mistake.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from local_requests import Calls
from local_toy import ToyEngine
from local_trace import max_gap, max_lag, max_underserved, max_wait

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.vtc import VTC

MEMORY = 900
LARGEST_INPUT = 200
VTC_UNIT = max(LARGEST_INPUT, 2 * MEMORY)
DLPM_UNIT = LARGEST_INPUT + 2 * MEMORY
QUANTUM = 300
DEPTH = 50  # more than fit into the memory at once

VTCS = [VTC.Params(), VTC.Params(charge="input")]
DLPMS = [
    DLPM.Params(quantum=QUANTUM),
    DLPM.Params(quantum=QUANTUM, no_room="skip"),
    DLPM.Params(quantum=QUANTUM, rejoin="min0"),
]


class Mix:
    """Random requests; each client has its own lengths and shares documents of its own."""

    def __init__(self, seed: int, clients: str) -> None:
        self._rng = random.Random(seed)
        self._call = Calls()
        self._inputs = {c: self._rng.choice([20, 60, LARGEST_INPUT]) for c in clients}
        self._outputs = {c: self._rng.choice([5, 20, 80]) for c in clients}

    def __call__(self, client: str) -> Request:
        rng = self._rng
        document = rng.randint(1, self._inputs[client] - 10)
        tail = rng.randint(10, self._inputs[client] - document)
        output = rng.randint(1, self._outputs[client])
        return self._call(client, (f"{client}{rng.randrange(3)}", document), tail=tail,
                          max_new=output)  # fmt: skip


def overload(engine: ToyEngine, mix: Mix, clients: str, steps: int, depth: int = DEPTH) -> None:
    """All of ``clients`` are backlogged throughout."""
    for _ in range(steps):
        for client in clients:
            while engine.waiting(client) < depth:
                engine.submit(mix(client))
        engine.step()


def on_and_off(engine: ToyEngine, mix: Mix, seed: int, steps: int) -> None:
    """a is backlogged, b and c come and go, d sends one request now and then."""
    rng = random.Random(seed)
    active = {"b": True, "c": False}
    for _ in range(steps):
        overload(engine, mix, "a", steps=0)
        while engine.waiting("a") < DEPTH:
            engine.submit(mix("a"))
        for client in "bc":
            active[client] ^= rng.random() < 0.05
            while active[client] and engine.waiting(client) < DEPTH:
                engine.submit(mix(client))
        if not engine.waiting("d") and not engine.running("d") and rng.random() < 0.1:
            engine.submit(mix("d"))
        engine.step()


def toy(scheduler: LocalScheduler, clients: str = "abcd", **options) -> ToyEngine:
    """An engine that logs the service the scheduler is meant to share out."""
    client_view = isinstance(scheduler, VTC) and scheduler.params.charge == "input"
    return ToyEngine(scheduler, MEMORY, clients, client_view=client_view, **options)


def counter_range(engine: ToyEngine, largest: list[float]) -> Callable[[], None]:
    """Keeps the largest counter range among waiting clients in ``largest[0]``."""

    def look() -> None:
        waiting = [engine.scheduler.counters[c] for c in engine.view.clients()]
        if waiting:
            largest[0] = max(largest[0], max(waiting) - min(waiting))

    return look


class TestVTC:
    @pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
    @pytest.mark.parametrize("seed", range(3))
    def test_lemma_4_3_at_every_instant(self, params, seed):
        engine, largest = toy(VTC(params)), [0.0]
        engine.on_instant = counter_range(engine, largest)
        on_and_off(engine, Mix(seed, "abcd"), seed, steps=200)
        assert 0 < largest[0] <= VTC_UNIT

    @pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
    @pytest.mark.parametrize("seed", range(3))
    def test_theorem_4_4_between_backlogged_clients(self, params, seed):
        engine = toy(VTC(params), "abc")
        overload(engine, Mix(seed, "abc"), "abc", steps=200)
        assert 0 < max_gap(engine.trace) <= 2 * VTC_UNIT

    @pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
    @pytest.mark.parametrize("seed", range(3))
    def test_theorems_4_9_4_11_and_4_13(self, params, seed):
        engine = toy(VTC(params))
        on_and_off(engine, Mix(seed, "abcd"), seed, steps=300)
        assert max_lag(engine.trace) <= 4 * VTC_UNIT
        assert max_wait(engine.trace, "d") <= 2 * 3 * VTC_UNIT
        for client in "abcd":
            assert max_underserved(engine.trace, client) <= 5 * VTC_UNIT

    @pytest.mark.parametrize("make", [lambda: VTC(VTC.Params()), lambda: FCFS(FCFS.Params())])
    def test_fcfs_keeps_none_of_them_on_a_trace_on_which_vtc_does(self, make):
        """One flood in front of everybody, then a client that asks for little."""
        engine, call = toy(make(), "ab"), Calls()
        for _ in range(600):
            engine.submit(call("a", tail=20, max_new=20))
        for step in range(500):
            if step % 20 == 0:
                engine.submit(call("b", tail=20, max_new=20))
            engine.step()
        fair = isinstance(engine.scheduler, VTC)
        assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == fair
        assert (max_lag(engine.trace) <= 4 * VTC_UNIT) == fair
        assert (max_wait(engine.trace, "b") <= 2 * VTC_UNIT) == fair
        assert (max_underserved(engine.trace, "b") <= 5 * VTC_UNIT) == fair

    @pytest.mark.parametrize(
        "make",
        [
            lambda: VTC(VTC.Params()),
            lambda: FCFS(FCFS.Params()),
            lambda: DLPM(DLPM.Params(quantum=QUANTUM)),
        ],
    )
    def test_theorem_4_8_no_work_conserving_scheduler_does_better(self, make):
        """f fills the memory, g arrives just after: w_q * M before anybody can do anything."""
        engine, call = toy(make(), "fg"), Calls()
        for _ in range(2):
            engine.submit(call("f", max_new=MEMORY - 1))
        engine.step()
        for _ in range(2):
            engine.submit(call("g", max_new=MEMORY - 1))
        for _ in range(MEMORY - 2):
            engine.step()
        assert engine.trace.service_of("g") == 0
        assert max_gap(engine.trace) == 2 * (MEMORY - 2)  # its first token came before g did

    @pytest.mark.parametrize("lift", ["paper", "none"])
    def test_without_the_lift_an_idle_client_starves_the_others(self, lift):
        """a is alone for long, then b joins (with one that the lift leaves within the bound)."""
        engine, mix = toy(VTC(VTC.Params(lift=lift)), "ab"), Mix(1, "ab")
        overload(engine, mix, "a", steps=200)
        before = engine.trace.service_of("a")
        overload(engine, mix, "ab", steps=200)
        served = engine.trace.service_of("b") / (engine.trace.service_of("a") - before)
        assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == (lift == "paper")
        assert (served < 2) == (lift == "paper")

    @pytest.mark.parametrize("complete", [True, False])
    def test_the_lift_over_an_empty_queue_is_needed_too(self, complete):
        """Lines 8-10: the published artifact leaves them out, and the first to return wins."""
        engine, mix = toy(VTC(VTC.Params()) if complete else ArtifactLift(), "ab"), Mix(1, "ab")
        overload(engine, mix, "a", steps=200)
        while engine.waiting("a") or engine.running("a"):
            engine.step()
        overload(engine, mix, "b", steps=1)  # finds the queue empty
        overload(engine, mix, "ab", steps=200)
        assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == complete

    @pytest.mark.parametrize("correct", [True, False])
    def test_charging_twice_breaks_theorem_4_4(self, correct):
        """The artifact charges every running request a token whenever any request finishes."""
        engine, call = toy(VTC(VTC.Params()) if correct else DoubleCharge(), "ab"), Calls()
        for _ in range(300):
            while engine.waiting("a") < DEPTH:
                engine.submit(call("a", max_new=40))
            while engine.waiting("b") < 500:
                engine.submit(call("b", max_new=1))
            engine.step()
        assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == correct


class ArtifactLift(VTC):
    """VTC without lines 8-10."""

    def __init__(self) -> None:
        super().__init__(VTC.Params())

    def on_arrival(self, request: Request, view: WaitingView) -> None:
        if len(view):
            super().on_arrival(request, view)
        else:
            self.counters.setdefault(request.client, 0)


class DoubleCharge(VTC):
    """VTC as in the artifact's finish handler."""

    def __init__(self) -> None:
        super().__init__(VTC.Params())
        self._running: Counter[str] = Counter()

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._running[request.client] += 1

    def on_finish(self, request: Request) -> None:
        for client, count in self._running.items():
            self.on_tokens(client, count)
        self._running[request.client] -= 1


class Credits:
    """Watches q_i after every event, and counts refills by what the log cannot explain."""

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
                # W = q(t1) - q(t2) + K * Q^u, with K a count (A11).
                refills, rest = divmod(
                    now - self._last[client] + paid - self._paid[client], self._quantum
                )
                assert rest == 0
                assert refills >= 0
        self._last = dict(credit)
        self._paid = {client: self._engine.trace.service_of(client) for client in credit}


class TestDLPM:
    @pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
    @pytest.mark.parametrize("seed", range(3))
    def test_credit_stays_within_its_bounds_and_a_1_holds(self, params, seed):
        engine = toy(DLPM(params))
        watch = Credits(engine, QUANTUM)
        on_and_off(engine, Mix(seed, "abcd"), seed, steps=200)
        assert -DLPM_UNIT < watch.lowest < 0 < watch.highest <= QUANTUM

    @pytest.mark.parametrize("quantum", [20, QUANTUM, 2000])
    @pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
    @pytest.mark.parametrize("seed", range(2))
    def test_theorem_4_1_between_backlogged_clients(self, params, seed, quantum):
        engine = toy(DLPM(DLPM.Params(quantum=quantum, no_room=params.no_room)), "abc")
        overload(engine, Mix(seed, "abc"), "abc", steps=200)
        assert 0 < max_gap(engine.trace) <= 2 * (DLPM_UNIT + quantum)

    @pytest.mark.parametrize("params", DLPMS, ids=["stop", "skip", "min0"])
    @pytest.mark.parametrize("seed", range(3))
    def test_theorems_4_2_and_a_2(self, params, seed):
        engine = toy(DLPM(params))
        on_and_off(engine, Mix(seed, "abcd"), seed, steps=300)
        assert max_lag(engine.trace) <= 2 * (DLPM_UNIT + QUANTUM)
        assert max_wait(engine.trace, "d") <= 2 * 3 * (DLPM_UNIT + QUANTUM)

    def test_a_credit_cap_of_q_u_is_reached_by_the_gap(self):
        """A larger quantum is less fair and serves whole documents: the trade-off of section 4.1."""
        gaps = []
        for quantum in (50, 5000):
            engine = toy(DLPM(DLPM.Params(quantum=quantum)), "ab")
            overload(engine, Mix(3, "ab"), "ab", steps=300)
            gaps.append(max_gap(engine.trace))
        assert gaps[0] < gaps[1]

    def test_strict_is_fair_and_relaxed_conserves_work(self):
        """A4: large requests that rarely fit, small ones that always do."""
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
        [("keep", 0.9, 1.1), ("min0", 0.9, 1.1), ("paper_zero", 5, 6)],
    )
    def test_leaving_and_coming_back_does_not_pay(self, rejoin, least, most):
        """A5: a sends one long prompt at a time, b is backlogged; a's service over b's.

        With its debt erased, a gets 21,453 for every two quanta of b.
        """
        engine = ToyEngine(
            DLPM(DLPM.Params(quantum=2000, rejoin=rejoin)), 22_000, "ab", documents=0
        )
        call = Calls()
        for _ in range(1000):
            if not engine.waiting("a") and not engine.running("a"):
                engine.submit(call("a", tail=21_449, max_new=2))
            while engine.waiting("b") < 120:
                engine.submit(call("b", tail=200, max_new=2))
            engine.step()
        ratio = engine.trace.service_of("a") / engine.trace.service_of("b")
        assert least < ratio < most


class TestOverCommittedMemory:
    """Section 10 (a): 001's "at most M tokens after the last admission" needs full reservation."""

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
        remaining = sum(self.OUTPUTS)  # at the last admission nothing had been decoded
        assert watch.lowest < -(1 + 2 * self.M)
        assert -(1 + 2 * remaining) < watch.lowest
