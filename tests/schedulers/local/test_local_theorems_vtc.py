"""Test the theorems of VTC ([VTC] §4.1) on a toy engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.vtc import VTC
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy import ToyEngine
from tests.schedulers.local.local_toy_load import (
    DEPTH,
    MEMORY,
    QUANTUM,
    VTC_UNIT,
    Mix,
    on_and_off,
    overload,
    toy,
)
from tests.schedulers.local.local_trace import max_gap, max_lag, max_underserved, max_wait

VTCS = [VTC.Params(), VTC.Params(charge="input")]


class ArtifactLift(VTC):
    """VTC without lines 8-10 of the algorithm."""

    def __init__(self) -> None:
        super().__init__(VTC.Params())

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        if len(view):
            super().on_arrival(request, view, now_s)
        else:
            self.counters.setdefault(request.client, 0)


class DoubleCharge(VTC):
    """A VTC that charges twice, like the artifact's handler of ends."""

    def __init__(self) -> None:
        super().__init__(VTC.Params())
        self._running: Counter[str] = Counter()

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._running[request.client] += 1

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        for client, count in self._running.items():
            self.on_tokens(client, count)
        self._running[request.client] -= 1


def counter_range(engine: ToyEngine, largest: list[float]) -> Callable[[], None]:
    """Keep the largest range of the waiting clients' counters in ``largest[0]``."""

    def look() -> None:
        waiting = [engine.scheduler.counters[c] for c in engine.view.clients()]
        if waiting:
            largest[0] = max(largest[0], max(waiting) - min(waiting))

    return look


@pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
@pytest.mark.parametrize("seed", range(3))
def test_lemma_4_3_at_every_instant(params, seed):
    engine, largest = toy(VTC(params)), [0.0]
    engine.on_instant = counter_range(engine, largest)
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=200)
    assert 0 < largest[0] <= VTC_UNIT


@pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
@pytest.mark.parametrize("seed", range(3))
def test_theorem_4_4_between_backlogged_clients(params, seed):
    engine = toy(VTC(params), "abc")
    overload(engine, Mix(seed, "abc"), "abc", steps=200)
    assert 0 < max_gap(engine.trace) <= 2 * VTC_UNIT


@pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
@pytest.mark.parametrize("seed", range(3))
def test_theorems_4_9_4_11_and_4_13(params, seed):
    engine = toy(VTC(params))
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=300)
    assert max_lag(engine.trace) <= 4 * VTC_UNIT
    assert max_wait(engine.trace, "d") <= 2 * 3 * VTC_UNIT
    for client in "abcd":
        assert max_underserved(engine.trace, client) <= 5 * VTC_UNIT


@pytest.mark.parametrize("make", [lambda: VTC(VTC.Params()), lambda: FCFS(FCFS.Params())])
def test_fcfs_violates_all_of_them_on_a_trace_on_which_vtc_keeps_them(make):
    """A flood arrives first, then a client that asks for little."""
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
def test_theorem_4_8_no_work_conserving_scheduler_is_better(make):
    """f fills the memory and g arrives immediately after. Under any scheduler, g waits w_q * M."""
    engine, call = toy(make(), "fg"), Calls()
    for _ in range(2):
        engine.submit(call("f", max_new=MEMORY - 1))
    engine.step()
    for _ in range(2):
        engine.submit(call("g", max_new=MEMORY - 1))
    for _ in range(MEMORY - 2):
        engine.step()
    assert engine.trace.service_of("g") == 0
    # f's first token was produced before g arrived
    assert max_gap(engine.trace) == 2 * (MEMORY - 2)


@pytest.mark.parametrize("lift", ["paper", "none"])
def test_without_the_lift_an_idle_client_starves_the_others(lift):
    """a is alone for long, then b joins. The lift makes both level; without it, b is far ahead."""
    engine, mix = toy(VTC(VTC.Params(lift=lift)), "ab"), Mix(1, "ab")
    overload(engine, mix, "a", steps=200)
    before = engine.trace.service_of("a")
    overload(engine, mix, "ab", steps=200)
    served = engine.trace.service_of("b") / (engine.trace.service_of("a") - before)
    assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == (lift == "paper")
    assert (served < 2) == (lift == "paper")


@pytest.mark.parametrize("complete", [True, False])
def test_the_lift_over_an_empty_queue_is_also_needed(complete):
    """The published artifact omits lines 8-10, so the first client to return wins."""
    engine, mix = toy(VTC(VTC.Params()) if complete else ArtifactLift(), "ab"), Mix(1, "ab")
    overload(engine, mix, "a", steps=200)
    while engine.waiting("a") or engine.running("a"):
        engine.step()
    overload(engine, mix, "b", steps=1)  # finds the queue empty
    overload(engine, mix, "ab", steps=200)
    assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == complete


@pytest.mark.parametrize("correct", [True, False])
def test_charging_twice_breaks_theorem_4_4(correct):
    """The artifact charges every running request a token whenever any request finishes."""
    engine, call = toy(VTC(VTC.Params()) if correct else DoubleCharge(), "ab"), Calls()
    for _ in range(300):
        while engine.waiting("a") < DEPTH:
            engine.submit(call("a", max_new=40))
        while engine.waiting("b") < 500:
            engine.submit(call("b", max_new=1))
        engine.step()
    assert (max_gap(engine.trace) <= 2 * VTC_UNIT) == correct


@pytest.mark.slow
@pytest.mark.parametrize("params", VTCS, ids=["extend", "input"])
@pytest.mark.parametrize("depth", [50, 120])
def test_theorem_4_4_on_many_seeds(params, depth):
    for seed in range(30):
        engine = toy(VTC(params), "abc")
        overload(engine, Mix(seed, "abc"), "abc", steps=400, depth=depth)
        assert max_gap(engine.trace) <= 2 * VTC_UNIT
