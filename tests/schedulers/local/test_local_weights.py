"""Test that weights from the experiment give proportional service in every policy."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.saturation import Detector
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.lcf import LCF
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.parts.worker_credits import WorkerCredit
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.round_robin import RoundRobin
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy import ToyEngine
from tests.schedulers.local.local_toy_load import DLPM_UNIT, QUANTUM, VTC_UNIT, Mix, overload, toy
from tests.schedulers.local.local_trace import weighted_gaps
from tests.strategies import examples

WEIGHTS = {"b": 3.0}


def served(scheduler, clients="ab"):
    """Return the computed service of each client on a busy toy engine."""
    engine = ToyEngine(scheduler, 600, clients)
    overload(engine, Mix(1, clients), clients, 1500)
    trace = engine.trace
    return [trace.service_of(client) for client in clients]


@pytest.mark.parametrize(
    "make",
    [lambda: VTC(VTC.Params()), lambda: DLPM(DLPM.Params(quantum=500)), lambda: LCF(LCF.Params())],
    ids=["vtc", "dlpm", "lcf"],
)
def test_a_client_of_weight_three_gets_three_times_the_service(make):
    plain, weighted = make(), make()
    plain.prepare(Setup(("a", "b")))
    weighted.prepare(Setup(("a", "b"), WEIGHTS))
    a, b = served(plain)
    assert b / a == pytest.approx(1, rel=0.1)
    a, b = served(weighted)
    assert b / a == pytest.approx(3, rel=0.1)


def test_fractional_quanta_stay_in_proportion():
    """3 tokens give 1.5 and 4.5. Rounded to 2 and 4, service would be 1 to 2."""
    scheduler = DLPM(DLPM.Params(quantum=3))
    scheduler.prepare(Setup(("a", "b"), {"a": 0.5, "b": 1.5}))
    a, b = served(scheduler)
    assert b / a == pytest.approx(3, rel=0.1)


def largest_part_of_its_bound(policy, weights, told, seed, steps=150):
    """Return the largest gap relative to its bound 2Q + U/w_f + U/w_g, over pairs of clients."""
    if isinstance(policy, int):
        scheduler, unit, quantum = DLPM(DLPM.Params(quantum=policy)), DLPM_UNIT, policy
    else:
        scheduler, unit, quantum = VTC(VTC.Params(charge=policy)), VTC_UNIT, 0
    scheduler.prepare(Setup(tuple(weights), told))
    engine = toy(scheduler, "".join(weights))
    overload(engine, Mix(seed, "".join(weights)), "".join(weights), steps)
    return max(
        gap / (2 * quantum + unit / weights[f] + unit / weights[g])
        for (f, g), gap in weighted_gaps(engine.trace, weights).items()
    )


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 30))]
)
@pytest.mark.parametrize("policy", ["extend", "input", 3, QUANTUM])
def test_the_theorems_hold_by_weight_for_each_pair_of_clients(policy, seed):
    """The quantum of 3 is not a whole number after weighting."""
    rng = random.Random(f"{policy} {seed}")
    weights = {client: 10 ** rng.uniform(-1, 1) for client in "abc"}
    assert 0 < largest_part_of_its_bound(policy, weights, weights, seed) <= 1


@pytest.mark.parametrize("policy", ["extend", QUANTUM])
def test_a_scheduler_without_the_weights_exceeds_their_bounds(policy):
    weights = {"a": 8.0, "b": 4.0}
    assert largest_part_of_its_bound(policy, weights, weights, 1, 400) <= 1
    assert largest_part_of_its_bound(policy, weights, {}, 1, 400) > 1


@given(st.floats(-1e6, 0), st.floats(1e-3, 1e6))
def test_a_client_gets_only_as_many_quanta_as_bring_it_into_credit(credit, quantum):
    rounds = rounds_to_credit(credit, quantum)
    assert rounds == int(rounds) >= 1
    assert credit + rounds * quantum > 0
    assert (rounds - 1) * quantum <= -credit * (1 + 1e-12)


def test_rounding_up_leaves_no_client_without_service():
    assert 1.0 // 0.1 == 9  # yet ten times 0.1 is 1.0, so ten quanta would give credit 0
    assert rounds_to_credit(-1.0, 0.1) == 11
    credit = WorkerCredit(0b11)
    credit[0], credit[1] = -1.0, -2.0
    credit.refill(0.1, 0b11)
    assert credit[0] > 0 > credit[1]


@examples(30)
@given(st.integers(1, 10**6), st.integers(-(10**6), 0))
def test_whole_quanta_are_counted_in_integers(quantum, credit):
    rounds = rounds_to_credit(credit, quantum)
    assert isinstance(rounds, int)
    assert 0 < credit + rounds * quantum <= quantum


def test_d2lpm_grants_quanta_by_weight():
    router = D2LPM(D2LPM.Params(worker_quantum=100), 2)
    router.prepare(Setup(("a", "b"), {"b": 2.5}))
    call = Calls()
    for client in "ab":
        router.route(call(client, tail=30), 0.0)
    assert sorted(router.credit["a"].values()) == [70, 100]
    assert sorted(router.credit["b"].values()) == [220, 250]


def test_a_queue_before_the_cluster_supports_weights():
    """A waiting client with three times the weight is served three times as often."""
    scheduler = VTC(VTC.Params())
    scheduler.prepare(Setup(("a", "b"), WEIGHTS))
    queue = GatewayQueue(scheduler, RoundRobin(RoundRobin.Params(), 1), _OneAtATime())
    call, sent = Calls(), []
    for _ in range(40):
        for client in "ab":
            queue.enter(call(client, tail=10), 0.0)
    for _ in range(40):
        queue.release(0.0, lambda request, worker: sent.append(request.client))
    assert sent.count("b") / sent.count("a") == pytest.approx(3, rel=0.1)


class _OneAtATime(Detector):
    """A gate with room for one request in each pass."""

    def __init__(self):
        self.asked = 0

    def has_room(self, now_s):
        self.asked += 1
        return self.asked % 2 == 1


def test_weights_of_vtc_override_those_of_the_experiment():
    scheduler = VTC(VTC.Params(weights={"a": 2.0}))
    scheduler.prepare(Setup(("a", "b"), WEIGHTS))
    call = Calls()
    for client in "ab":
        scheduler.on_arrival(call(client), _Nobody(), 0.0)
        scheduler.on_tokens(client, 30)
    assert scheduler.counters == {"a": 30, "b": 20}
    with pytest.raises(UsageError, match=r"client in vtc\.weights 'a'"):
        scheduler.prepare(Setup(("b", "c")))


class _Nobody:
    """A queue without waiting requests."""

    def clients(self):
        return ()
