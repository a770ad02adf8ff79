"""Test the theorems on the real simulated engine, with full reservation ([gaps] E1)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fairbench.core import Request
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.routing.d2lpm import D2LPM
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_simulated import LIMITS, Fleet
from tests.schedulers.local.local_trace import (
    backlogged_share,
    max_gap,
    max_lag,
    max_underserved,
    max_wait,
)
from tests.slow_params import slow

POOL = LIMITS.pool_tokens
LARGEST_INPUT = 300
VTC_UNIT = max(LARGEST_INPUT, 2 * POOL)
DLPM_UNIT = LARGEST_INPUT + 2 * POOL
QUANTUM = 400
DEPTH = 40  # outstanding requests of a backlogged client at each worker, more than fit


def vtc() -> VTC:
    return VTC(VTC.Params())


def dlpm(**params) -> Callable[[], DLPM]:
    return lambda: DLPM(DLPM.Params(quantum=QUANTUM, **params))


class Load:
    """Random requests. Each client has its own lengths and its own shared documents."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.rng, self.call = fleet, random.Random(seed), Calls()
        self._inputs = {c: self.rng.choice([40, 90, LARGEST_INPUT]) for c in fleet.clients}
        self._outputs = {c: self.rng.choice([8, 25, 60]) for c in fleet.clients}
        self._refilled: set[str] = set()
        fleet.on_done = self._done

    def send(self, client: str) -> None:
        rng = self.rng
        document = rng.randint(1, self._inputs[client] - 20)
        tail = rng.randint(20, self._inputs[client] - document)
        output = rng.randint(1, self._outputs[client])
        name = f"{client}{rng.randrange(4)}"
        self.fleet.submit(self.call(client, (name, document), tail=tail, max_new=output))

    def keep_backlogged(self, clients: str, depth: int = DEPTH) -> None:
        """Keep ``depth`` requests of each client in flight from now on."""
        for _ in range(depth):
            for client in clients:
                self.send(client)
        self._refilled |= set(clients)

    def _done(self, request: Request) -> None:
        if request.client in self._refilled:
            self.send(request.client)

    def come_and_go(self) -> None:
        """Keep a backlogged, let b and c send bursts, and let d send a request occasionally."""
        self.keep_backlogged("a")
        for client, period_s, burst in (("b", 1.1, 30), ("c", 1.7, 50), ("d", 0.6, 1)):
            for number in range(1, 40):
                time_s = number * period_s * self.rng.uniform(0.8, 1.2)
                for _ in range(burst):
                    self.fleet.at(time_s, lambda client=client: self.send(client))


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_vtc_lemma_4_3_and_theorem_4_4(seed):
    fleet = Fleet(vtc, "abc")
    Load(fleet, seed).keep_backlogged("abc")
    worker, largest = fleet.workers[0], 0.0

    def look() -> None:
        nonlocal largest
        counters = [worker.scheduler.counters[client] for client in worker.waiting.clients()]
        largest = max(largest, max(counters) - min(counters))

    fleet.run(1200, look)
    trace = fleet.trace()
    assert backlogged_share(trace) > 0.99
    assert 0 < largest <= VTC_UNIT
    assert 0 < max_gap(trace) <= 2 * VTC_UNIT


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_vtc_theorems_4_9_4_11_and_4_13(seed):
    fleet = Fleet(vtc, "abcd")
    Load(fleet, seed).come_and_go()
    fleet.run(4000)
    trace = fleet.trace()
    assert 0 < max_lag(trace) <= 4 * VTC_UNIT
    assert 0 < max_wait(trace, "d") <= 2 * 3 * VTC_UNIT
    assert all(max_underserved(trace, client) <= 5 * VTC_UNIT for client in "abcd")


@pytest.mark.parametrize("no_room", ["stop", "skip"])
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_dlpm_credit_a_1_and_theorem_4_1(seed, no_room):
    fleet = Fleet(dlpm(no_room=no_room), "abc")
    Load(fleet, seed).keep_backlogged("abc")
    events = 0

    def look() -> None:
        nonlocal events
        events += 1
        credit = fleet.workers[0].scheduler.credit
        assert all(-DLPM_UNIT < left <= QUANTUM for left in credit.values())
        # W = K * Q^u - q, where K is a whole number of refills ([DLPM] §A.1, [gaps] A11)
        if events % 100 == 0:
            for client in "abc":
                assert (fleet.service_so_far(client) + credit[client]) % QUANTUM == 0

    fleet.run(1200, look)
    trace = fleet.trace()
    assert backlogged_share(trace) > 0.99
    assert 0 < max_gap(trace) <= 2 * (DLPM_UNIT + QUANTUM)


@pytest.mark.parametrize(
    ("seed", "no_room"), [(0, "stop"), *slow((0, "skip"), (1, "stop"), (1, "skip"))]
)
def test_dlpm_theorems_4_2_and_a_2(seed, no_room):
    fleet = Fleet(dlpm(no_room=no_room), "abcd")
    Load(fleet, seed).come_and_go()
    fleet.run(4000)
    trace = fleet.trace()
    assert 0 < max_lag(trace) <= 2 * (DLPM_UNIT + QUANTUM)
    assert 0 < max_wait(trace, "d") <= 2 * 3 * (DLPM_UNIT + QUANTUM)


def test_lpm_breaks_the_bound_on_a_load_on_which_dlpm_keeps_it():
    """a's requests share a document, so LPM never reaches b's."""
    gaps = {}
    for name, make in (("dlpm", dlpm()), ("lpm", lambda: LPM(LPM.Params()))):
        fleet, call = Fleet(make, "ab"), Calls()

        def send(client: str, fleet=fleet, call=call) -> None:
            shared = [("doc", 100)] if client == "a" else []
            fleet.submit(call(client, *shared, tail=30, max_new=20))

        fleet.on_done = lambda request, send=send: send(request.client)
        for _ in range(DEPTH):
            send("a")
            send("b")
        fleet.run(1200)
        gaps[name] = max_gap(fleet.trace())
    assert gaps["dlpm"] <= 2 * (DLPM_UNIT + QUANTUM) < gaps["lpm"]


def d2lpm(worker_quantum: int, workers: int) -> D2LPM:
    return D2LPM(D2LPM.Params(worker_quantum=worker_quantum), workers)


@pytest.mark.parametrize(("workers", "seed"), [(2, 0), (2, 1), (3, 2), (4, 3)])
def test_d2lpm_theorems_5_1_and_5_2_while_every_queue_holds_the_client(workers, seed):
    fleet = Fleet(dlpm(), "abc", d2lpm(2000, workers), workers)
    Load(fleet, seed).keep_backlogged("abc", depth=DEPTH * workers)
    fleet.run(700 * workers)
    trace = fleet.trace()
    assert backlogged_share(trace) > 0.8
    assert 0 < max_gap(trace) <= 2 * workers * (DLPM_UNIT + QUANTUM)
    assert 0 < max_lag(trace) <= 2 * workers * (DLPM_UNIT + QUANTUM)


@pytest.mark.parametrize(("workers", "seed"), [(2, 0), (4, 1)])
def test_d2lpm_theorem_a_3_at_every_event(workers, seed):
    """Credits are within their bounds, and W = K * Q^u - q over all workers for a whole K."""
    fleet = Fleet(dlpm(), "abc", d2lpm(2000, workers), workers)
    Load(fleet, seed).keep_backlogged("abc", depth=DEPTH * workers)
    events, owed, most = 0, 0, 0

    def look() -> None:
        nonlocal events, owed, most
        events += 1
        credits = [worker.scheduler.credit for worker in fleet.workers]
        every = [left for credit in credits for left in credit.values()]
        assert all(-DLPM_UNIT < left <= QUANTUM for left in every)
        owed, most = min(owed, *every, 0), max(most, *every, 0)
        if events % 100 == 0:
            for client in "abc":
                left = sum(credit.get(client, 0) for credit in credits)
                assert (fleet.service_so_far(client) + left) % QUANTUM == 0
                assert abs(left) <= max(QUANTUM, DLPM_UNIT) * workers

    fleet.run(400 * workers, look)
    assert events == 400 * workers
    assert owed < -100
    assert most > QUANTUM / 2


@pytest.mark.parametrize(("worker_quantum", "fair"), [(2000, True), (10**12, False)])
def test_an_endless_worker_quantum_violates_theorem_5_1(worker_quantum, fair):
    """A.5: f stays at the worker that holds its document, and g matches nothing anywhere."""
    fleet, call = Fleet(dlpm(), "fg", d2lpm(worker_quantum, 2), 2), Calls()
    used: set[int] = set()

    def send(client: str) -> None:
        shared = [("doc", 200)] if client == "f" else []
        worker = fleet.submit(call(client, *shared, tail=40, max_new=20))
        if client == "f":
            used.add(worker)

    fleet.on_done = lambda request: send(request.client)
    for _ in range(100):
        for client in "fggg":
            send(client)
    fleet.run(2500)
    trace = fleet.trace(everywhere=False)
    assert backlogged_share(trace) > 0.9
    assert (len(used) == 2) == fair
    assert (max_gap(trace) <= 2 * 2 * (DLPM_UNIT + QUANTUM)) == fair


class TestOverCommittedMemory:
    """Over-committed memory on the real engine: a small ratio reserves almost nothing."""

    OUTPUTS = (1000, 500, 333, 250)  # in order of arrival, one or two decode steps apart
    POOL = 1050

    def run(self, *, full_reservation: bool) -> tuple[int, int, int]:
        """Return (tokens decoded after the last admission, retractions, lowest credit)."""
        fleet = Fleet(
            lambda: DLPM(DLPM.Params(quantum=8)),
            "a",
            pool_tokens=self.POOL,
            schedule_conservativeness=0.001,
            full_reservation=full_reservation,
        )
        call, lowest = Calls(), 0
        for number, output in enumerate(self.OUTPUTS):
            request = call("a", max_new=output)
            fleet.at(number * 0.02, lambda request=request: fleet.submit(request))
        credit = fleet.workers[0].scheduler.credit

        def look() -> None:
            nonlocal lowest
            lowest = min(lowest, *credit.values(), 0)

        fleet.run(10_000, look)
        assert [s.produced for s in fleet.sequences] == list(self.OUTPUTS)
        last = max(s.admitted_ps for s in fleet.sequences)
        ends, tokens = fleet.log.column("end_ps"), fleet.log.column("output_tokens")
        decoded = sum(n for end, n in zip(ends, tokens, strict=True) if end > last)
        return decoded, sum(s.retractions for s in fleet.sequences), lowest

    def test_more_than_m_tokens_follow_the_last_admission(self):
        decoded, retractions, lowest = self.run(full_reservation=False)
        assert retractions == 0
        assert decoded > 2000 > self.POOL
        assert -(1 + 2 * sum(self.OUTPUTS)) < lowest < -2 * self.POOL

    def test_with_full_reservation_at_most_m_tokens_follow_the_last_admission(self):
        decoded, _, lowest = self.run(full_reservation=True)
        assert decoded <= self.POOL
        assert lowest > -(1 + 2 * self.POOL)


def test_the_trace_adds_up_to_the_engines_work():
    """The log's rows, charged at admission, are compared with the engine's requests."""
    fleet = Fleet(dlpm(), "abc")
    load = Load(fleet, 5)
    for _ in range(60):
        for client in "abc":
            load.send(client)
    fleet.run(10_000)
    assert all(s.produced == s.output.length for s in fleet.sequences)
    trace = fleet.trace()
    last = max(s.finish_ps for s in fleet.sequences)
    ending = [s.request.client for s in fleet.sequences if s.finish_ps == last]
    for client in "abc":  # the trace ends immediately before the last instant
        tokens = 2 * ending.count(client)
        assert trace.service_of(client) == fleet.service_so_far(client) - tokens
