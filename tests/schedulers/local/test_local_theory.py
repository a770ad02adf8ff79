"""Test the inequalities of docs/appendix/theory.md on random traces of the engine.

A trace called tight comes as near to its bound as the page says.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairbench.core import Segment, ServiceWeights
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.metrics.bounds import vtc_unit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.parts.fleet import members
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.fair_finish import FairFinish
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_simulated import LIMITS, PROFILE, Fleet
from tests.schedulers.local.local_toy import ToyEngine
from tests.schedulers.local.local_toy_load import MEMORY, Mix, on_and_off, overload
from tests.schedulers.local.local_trace import max_gap, max_wait

POOL = LIMITS.pool_tokens
WHOLE = POOL - 3  # output tokens of a request that takes the whole pool, with one input token
COSTS = ProfileCosts(load_profile(PROFILE))
FEW = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def send_in_order(fleet, *requests):
    """Send (client, output) pairs: all wait from the beginning, with one input token each."""
    call = Calls()
    for client, output in requests:
        fleet.submit(call(client, max_new=output))
    return fleet


# VTC.


def test_vtc_reaches_99_percent_of_its_bound():
    """f takes the whole pool; then g does, ends one token behind, and takes it again."""
    fleet = Fleet(lambda: VTC(VTC.Params()), "fg")
    order = [("f", WHOLE), ("g", WHOLE - 1), ("g", WHOLE), ("f", 2), ("g", 2), ("f", 2), ("g", 2)]
    send_in_order(fleet, *order).run(10**5)
    bound = 2 * 2 * POOL
    assert 0.99 * bound < max_gap(fleet.trace()) <= bound


def test_a_client_that_returns_to_vtc_may_wait_99_percent_of_its_bound():
    """f has just had the pool; g is a token behind when its second request of that size arrives."""
    fleet = Fleet(lambda: VTC(VTC.Params()), "fg")
    send_in_order(fleet, ("f", WHOLE), ("g", WHOLE - 1), ("g", WHOLE), ("g", 2))
    fleet.on_done = lambda request: (
        request.client == "f" and len(fleet.sequences) == 4 and send_in_order(fleet, ("f", 5))
    )
    fleet.run(10**5)
    bound = 2 * (2 - 1) * 2 * POOL
    assert 0.99 * bound < max_wait(fleet.trace(), "f") <= bound


@FEW
@given(st.integers(0, 10**6), st.sampled_from(["extend", "input"]))
def test_vtc_on_random_traces(seed, charge):
    engine = ToyEngine(VTC(VTC.Params(charge=charge)), MEMORY, "abc", client_view=charge == "input")
    overload(engine, Mix(seed, "abc"), "abc", steps=80)
    assert max_gap(engine.trace) <= 2 * 2 * MEMORY
    engine = ToyEngine(
        VTC(VTC.Params(charge=charge)), MEMORY, "abcd", client_view=charge == "input"
    )
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=120)
    assert max_wait(engine.trace, "d") <= (2 * 3 + 1) * 2 * MEMORY


class TestVTCWithOverCommittedMemory:
    """The paper's max(w_p L, w_q M) is no bound here, not even with the observed outputs for M.

    f has four requests in flight that decode 2,083 tokens one after the other, and is chosen once
    more with a long prompt; g's next request does not fit before they end.
    """

    # requests of 2 tokens end immediately, which triggers a pass
    OUTPUTS = (1000, 2, 500, 333, 2, 250)
    LONG, SMALL_POOL = 600, 1_050

    def spread(self):
        fleet = Fleet(
            lambda: VTC(VTC.Params()),
            "fg",
            pool_tokens=self.SMALL_POOL,
            schedule_conservativeness=0.001,
            full_reservation=False,
            chunked_prefill_size=2_000,
            max_prefill_tokens=2_000,
        )
        call, most = Calls(), 0
        fleet.submit(call("g", tail=45, max_new=1))
        fleet.submit(call("g", tail=1_040, max_new=1))
        for output in self.OUTPUTS:
            fleet.submit(call("f", max_new=output))
        fleet.submit(call("f", tail=self.LONG, max_new=1))
        worker = fleet.workers[0]

        def look():
            nonlocal most
            if "g" in worker.waiting.clients():
                counters = worker.scheduler.counters
                most = max(most, counters["f"] - counters["g"])

        fleet.run(10**5, look)
        assert all(s.produced == s.output.length for s in fleet.sequences)
        return most, sum(s.retractions for s in fleet.sequences)

    def test_the_prompt_is_added_to_the_remaining_decoding(self):
        spread, retractions = self.spread()
        promised = sum(self.OUTPUTS) + 1
        assert retractions == 0
        assert spread > max(self.LONG, 2 * promised) > max(self.LONG, 2 * self.SMALL_POOL)
        proved = vtc_unit(1_040, self.SMALL_POOL, ServiceWeights(), promised)
        assert proved == 1_040 + 2 * promised
        assert 0.9 * proved < spread <= proved


# DLPM.

QUANTUM = 30


def ahead_and_behind(send):
    """Leave both clients 3 credits before they take the pool; g is slightly less in debt and
    repeats it first.
    """
    for client, last in (("f", WHOLE), ("g", WHOLE - 4)):
        for _ in range(9):
            send(client, 1)
        send(client, last)
    for _ in range(9):
        send("g", 1)
    send("g", WHOLE)
    for _ in range(60):
        send("f", 1)
        send("g", 1)


def test_dlpm_reaches_98_percent_of_its_bound():
    fleet, call = Fleet(lambda: DLPM(DLPM.Params(quantum=QUANTUM)), "fg"), Calls()
    ahead_and_behind(lambda client, output: fleet.submit(call(client, max_new=output)))
    fleet.run(10**5)
    bound = 2 * (1 + 2 * POOL + QUANTUM)
    assert 0.98 * bound < max_gap(fleet.trace()) <= bound


def test_a_client_that_returns_to_dlpm_may_wait_98_percent_of_its_bound():
    """f has just had the pool; g gets quanta until f is nearly in credit, and then overdraws."""
    fleet = Fleet(lambda: DLPM(DLPM.Params(quantum=QUANTUM)), "fg", max_running_requests=1)
    rounds = (1 + 2 * WHOLE) // QUANTUM  # after this, f is in credit
    smalls = rounds * QUANTUM // 3 + 9
    send_in_order(fleet, ("f", WHOLE), *[("g", 1)] * smalls, ("g", WHOLE), ("g", 1))
    fleet.on_done = lambda request: (
        len(fleet.sequences) == smalls + 3 and send_in_order(fleet, ("f", 1))
    )
    fleet.run(10**5)
    bound = 2 * (2 - 1) * (1 + 2 * POOL + QUANTUM)
    assert 0.98 * bound < max_wait(fleet.trace(), "f") <= bound


@FEW
@given(
    st.integers(0, 10**6),
    st.sampled_from([5, 60, 300, 3_000]),
    st.sampled_from(["stop", "skip"]),
    st.sampled_from(["keep", "min0"]),
)
def test_dlpm_on_random_traces(seed, quantum, no_room, rejoin):
    params = DLPM.Params(quantum=quantum, no_room=no_room, rejoin=rejoin)
    unit = 200 + 2 * MEMORY
    engine = ToyEngine(DLPM(params), MEMORY, "abc")
    overload(engine, Mix(seed, "abc"), "abc", steps=80)
    assert max_gap(engine.trace) <= 2 * (unit + quantum)
    engine = ToyEngine(DLPM(params), MEMORY, "abcd")
    on_and_off(engine, Mix(seed, "abcd"), seed, steps=120)
    assert max_wait(engine.trace, "d") <= 2 * 3 * (unit + quantum)


# D2LPM.


def test_d2lpm_reaches_98_percent_of_its_bound():
    """A worker quantum of one token makes workers alternate, so DLPM's example happens at both at
    once.
    """
    fleet = Fleet(
        lambda: DLPM(DLPM.Params(quantum=QUANTUM)),
        "fg",
        D2LPM(D2LPM.Params(worker_quantum=1, output_weight=1), 2),
        2,
    )
    call = Calls()

    def send(client, output):
        for _ in range(2):
            fleet.submit(call(client, max_new=output))

    ahead_and_behind(send)
    fleet.run(10**5)
    bound = 2 * 2 * (1 + 2 * POOL + QUANTUM)
    assert 0.98 * bound < max_gap(fleet.trace()) <= bound


@FEW
@given(st.data(), st.integers(2, 4), st.sampled_from([1, 50, 1_000]))
def test_the_charges_of_one_client_at_a_router_differ_little_between_workers(
    data, workers, quantum
):
    router = D2LPM(D2LPM.Params(worker_quantum=quantum), workers)
    call, flights = Calls(), {worker: [] for worker in range(workers)}
    charged = dict.fromkeys(range(workers), 0)
    largest_input, largest_output, worst = 0, 0, 0
    for _ in range(150):
        busy = [worker for worker, here in flights.items() if here]
        if not busy or data.draw(st.integers(0, 2)):
            document = (f"doc{data.draw(st.integers(0, 2))}", 40)
            request = call("f", document, tail=data.draw(st.integers(1, 60)))
            worker = router.route(request, 0.0)
            flights[worker].append((request, data.draw(st.integers(1, 30))))
            charged[worker] += request.input_tokens
            largest_input = max(largest_input, request.input_tokens)
            under_way = sum(output for _, output in flights[worker])
            largest_output = max(largest_output, under_way)
        else:
            worker = data.draw(st.sampled_from(busy))
            request, output = flights[worker].pop(0)
            router.on_finish(request, worker, Segment("out", output), 0.0)
            charged[worker] += 2 * output
        worst = max(worst, max(charged.values()) - min(charged.values()))
        assert worst < quantum + largest_input + 2 * largest_output


def test_between_workers_the_difference_reaches_99_percent_of_its_bound():
    """All requests follow one prefix until the credit there is 1; one more follows, then all their
    outputs are charged.
    """
    router, call = D2LPM(D2LPM.Params(worker_quantum=1_000), 2), Calls()
    inputs = [111] * 9 + [500]
    sent = [call("f", ("doc", 100), tail=tokens - 100) for tokens in inputs]
    workers = {router.route(request, 0.0) for request in sent}
    assert len(workers) == 1
    for request in sent:
        router.on_finish(request, *workers, Segment("out", 30), 0.0)
    credit = sorted(router.credit["f"].values())
    bound = 1_000 + 500 + 2 * 30 * len(sent)
    assert 0.99 * bound < credit[1] - credit[0] < bound


# The load cap, and GPU time.


@FEW
@given(st.integers(0, 10**6), st.integers(200, 900))
def test_under_a_load_cap_little_decoding_remains(seed, cap):
    rng, call = random.Random(seed), Calls()
    fleet = Fleet(
        lambda: VTC(VTC.Params()), "fg", pool_tokens=20_000, full_reservation=False, load_cap=cap
    )
    for number in range(60):
        request = call(rng.choice("fg"), tail=rng.randint(1, 60), max_new=rng.randint(1, 120))
        fleet.at(number * 0.05, lambda request=request: fleet.submit(request))
    batch_cost = fleet.workers[0].cap
    costs, most = {}, 0
    enter = batch_cost.enter

    def watched(request):
        before = batch_cost.tokens
        enter(request)
        costs[request] = batch_cost.tokens - before

    batch_cost.enter = watched
    seen = 0

    def look():
        nonlocal most, seen
        if len(costs) > seen:
            seen = len(costs)
            remaining = 0
            for s in fleet.sequences:
                if s.request in costs and s.finish_ps < 0:
                    batch = fleet.workers[0].batch
                    produced = batch.produced(s) if s in batch.sequences else s.produced
                    remaining += s.output.length - produced
            most = max(most, remaining)

    fleet.run(20_000, look)
    outputs = {s.request: s.output.length for s in fleet.sequences}
    rate = max(outputs[request] / cost for request, cost in costs.items())
    assert 0 < most <= max(cap * rate, max(outputs.values()))


def test_under_a_load_cap_99_percent_of_that_remains_after_one_pass():
    def fleet(cap):
        return Fleet(lambda: VTC(VTC.Params()), "f", pool_tokens=20_000, load_cap=cap)

    alone = send_in_order(fleet(10**6), ("f", 50))
    alone.run(2)
    cost = alone.workers[0].cap.tokens
    cap = round(10 * cost) + 1
    many = send_in_order(fleet(cap), *[("f", 50)] * 30)
    many.run(2)
    assert len(many.workers[0].cap) == 10
    assert 0.99 * cap * 50 / cost < 10 * 50 <= cap * 50 / cost


class Watched(VTC):
    """A watcher of each client's GPU time, in total and since its last turn."""

    def __init__(self):
        super().__init__(VTC.Params(charge="gpu-time"))
        self.on_prompt_time, self.on_gpu_time = self._charge_prompt_time, self._charge_gpu_time
        self.prepare(Setup(costs=COSTS))
        self.told = {"f": 0, "g": 0}
        self.chosen_at = dict(self.told)
        self.most_since = self.most_ahead = 0

    def on_admitted(self, request, extend_tokens, recompute):
        super().on_admitted(request, extend_tokens, recompute)
        self.chosen_at[request.client] = self.told[request.client]
        ahead = (charged - self.told[client] for client, charged in self.counters.items())
        self.most_ahead = max(self.most_ahead, *ahead)

    def _spent(self, client, gpu_ps):
        self.told[client] += gpu_ps
        self.most_since = max(self.most_since, self.told[client] - self.chosen_at[client])

    def _charge_prompt_time(self, request, gpu_ps, complete):
        self.charging.prompt_time(request, gpu_ps, complete)
        self._spent(request.client, gpu_ps)

    def _charge_gpu_time(self, client, gpu_ps):
        self.charging.gpu_time(client, gpu_ps)
        self._spent(client, gpu_ps)


def gpu_gap(fleet, scheduler, events):
    """Return the gap of two always waiting clients relative to the inequality's bound."""
    gaps = [0]

    def look():
        if len(fleet.workers[0].waiting.clients()) == 2:
            gaps.append(scheduler.told["f"] - scheduler.told["g"])

    fleet.run(events, look)
    return (max(gaps) - min(gaps)) / (2 * (scheduler.most_since + scheduler.most_ahead))


def test_gpu_time_reaches_99_percent_of_its_bound():
    scheduler = Watched()
    fleet = Fleet(lambda: scheduler, "fg")
    order = [("f", WHOLE), ("g", WHOLE - 1), ("g", WHOLE), ("f", 2), ("g", 2), ("f", 2), ("g", 2)]
    assert 0.99 < gpu_gap(send_in_order(fleet, *order), scheduler, 10**5) <= 1


@FEW
@given(st.integers(0, 10**6))
def test_gpu_time_of_two_waiting_clients_differs_by_the_work_after_a_choice(seed):
    scheduler = Watched()
    fleet, mix = Fleet(lambda: scheduler, "fg"), Mix(seed, "fg")
    fleet.on_done = lambda request: fleet.submit(mix(request.client))
    for _ in range(40):
        for client in "fg":
            fleet.submit(mix(client))
    assert 0 < gpu_gap(fleet, scheduler, 400) <= 1


# Fair finish.


def room(router, request, clients):
    """Return the lemma's limit on a client's work at a worker after this request goes there."""
    levels = router._tree.levels(router._tree.find(request.prompt).node)
    costs = router._costs(request, levels)
    work = {worker: cost for cost, workers in costs for worker in members(workers)}
    has = {worker: router._backlogs[worker].work(request.client) for worker in work}
    slack = router._slack(levels[0].tokens if levels else 0)
    return slack + clients * min(has[worker] + work[worker] for worker in work)


@FEW
@given(st.data(), st.integers(2, 4), st.sampled_from([0, 5, 50]))
def test_a_client_with_much_work_at_one_worker_has_some_at_every_other(data, workers, slack):
    router = FairFinish(FairFinish.Params(slack=float(slack)), workers)
    call, flights = Calls(), []
    for _ in range(120):
        if not flights or data.draw(st.integers(0, 3)):
            client = data.draw(st.sampled_from("fgh"))
            document = (f"{client}{data.draw(st.integers(0, 1))}", 100)
            request = call(client, document, tail=data.draw(st.integers(1, 60)))
            most = room(router, request, clients=3)
            worker = router.route(request, 0.0)
            flights.append((request, worker))
            assert router._backlogs[worker].work(client) <= most
        else:
            request, worker = flights.pop(data.draw(st.integers(0, len(flights) - 1)))
            router.on_finish(request, worker, Segment("out", 20), 0.0)


def test_a_lone_client_has_97_percent_of_that_at_the_worker_of_its_prefix():
    router, call = FairFinish(FairFinish.Params(slack=50.0), 2), Calls()
    sent = [router.route(call("f", ("doc", 200), tail=40), 0.0) for _ in range(35)]
    assert set(sent[:34]) == {sent[0]}
    assert sent[34] != sent[0]
    assert 0.97 * 10_496 < router._backlogs[sent[0]].work("f") <= 10_496


def gap_and_workers_of_f(router):
    """Simulate f, whose requests share a document, and g, whose requests share nothing."""
    fleet, call = Fleet(lambda: DLPM(DLPM.Params(quantum=400)), "fg", router, 2), Calls()
    used = set()

    def send(client):
        shared = [("doc", 200)] if client == "f" else []
        worker = fleet.submit(call(client, *shared, tail=40, max_new=20))
        if client == "f":
            used.add(worker)

    fleet.on_done = lambda request: send(request.client)
    for _ in range(100):
        for client in "fggg":
            send(client)
    fleet.run(2_500)
    return max_gap(fleet.trace(everywhere=False)), len(used)


@pytest.mark.parametrize(("slack", "sticky"), [(10**9, True), (0, False)])
def test_with_much_slack_fair_finish_is_as_unfair_as_an_endless_worker_quantum(slack, sticky):
    """[DLPM] A.5: all work of f in flight is less than its slack, so f stays at one worker."""
    gap, used = gap_and_workers_of_f(FairFinish(FairFinish.Params(slack=float(slack)), 2))
    assert (used == 1) == sticky
    assert (gap > 2 * 2 * (300 + 2 * POOL + 400)) == sticky
