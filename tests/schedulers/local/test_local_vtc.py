"""Test VTC's counters by hand: charges, both lifts, weights and ties ([VTC] Alg. 2)."""

from __future__ import annotations

import pytest

from fairbench.core import NoBound
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.vtc import VTC
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy import ToyEngine


def desk(**params) -> Desk:
    return Desk(VTC(VTC.Params(**params)))


def serve(at: Desk, call: Calls, client: str, service: int) -> None:
    """Serve one request of the client alone, for an even ``service``."""
    request = call(client, tail=2)
    at.arrive(request)
    at.run_pass()
    before = at.scheduler.counters[client]
    at.scheduler.on_tokens(client, (service - 2) // 2)
    assert at.scheduler.counters[client] == before + service - 2
    at.scheduler.on_finish(request)


@pytest.mark.parametrize(("charge", "counter"), [("extend", 20 + 2 * 7), ("input", 30 + 2 * 7)])
def test_a_counter_charges_input_at_admission_and_two_per_output_token(charge, counter):
    at, call = desk(charge=charge), Calls()
    request = call("a", tail=30)
    at.matched[request] = 10
    at.arrive(request)
    at.run_pass()
    at.scheduler.on_tokens("a", 3)
    at.scheduler.on_tokens("a", 4)
    assert at.scheduler.counters == {"a": counter}


def test_the_client_served_least_is_next_and_its_requests_keep_their_order():
    at, call = desk(), Calls()
    a1, a2, a3 = call("a", tail=10), call("a", tail=10), call("a", tail=10)
    b1, b2 = call("b", tail=25), call("b", tail=5)
    at.arrive(a1, b1, a2, b2, a3)
    # a 0, b 0: a1 (10, 0), b1 (10, 25), a2 (20, 25), a3 (30, 25), b2
    assert at.run_pass() == [a1, b1, a2, a3, b2]
    assert at.scheduler.counters == {"a": 30, "b": 30}


def test_no_request_is_skipped_when_that_of_the_client_served_least_does_not_fit():
    at, call = desk(), Calls()
    large, small = call("a", tail=100), call("b", tail=1)
    at.arrive(large, small)
    assert at.run_pass(lambda r: r is small) == []
    assert at.offered == [large]


def test_a_client_is_lifted_to_the_lowest_counter_that_waits():
    """This covers lines 11-13 of the algorithm."""
    at, call = desk(), Calls()
    at.arrive(call("a", tail=100), call("b", tail=40), call("a"), call("b"))
    assert len(at.run_pass(at_most=2)) == 2  # counters: a 100, b 40
    at.arrive(call("c"))
    assert at.scheduler.counters == {"a": 100, "b": 40, "c": 40}


def test_a_lift_never_lowers_a_counter():
    at, call = desk(), Calls()
    serve(at, call, "c", 70)
    at.arrive(call("a"))  # lifted to 70 as well, because c left last
    at.scheduler.counters["a"] = 10
    at.arrive(call("c"))
    assert at.scheduler.counters == {"a": 10, "c": 70}


def test_a_client_that_is_waiting_is_not_lifted_again():
    at, call = desk(), Calls()
    at.arrive(call("a", tail=100), call("b", tail=100), call("a"), call("b"), call("c", tail=1))
    at.scheduler.counters.update({"a": 60, "b": 80, "c": 0})
    at.arrive(call("c"))
    assert at.scheduler.counters["c"] == 0


def test_without_waiting_clients_the_lift_is_to_the_client_that_left_last():
    """Lines 8-10: charges after leaving count, and only the client that left last matters."""
    at, call = desk(), Calls()
    serve(at, call, "a", 500)
    at.arrive(call("b", tail=6), call("a", tail=2))
    assert at.scheduler.counters == {"a": 500, "b": 500}
    at.run_pass()  # b (506), then a (502): a left last
    at.scheduler.on_tokens("a", 4)
    at.arrive(call("c"))
    assert at.scheduler.counters == {"a": 510, "b": 506, "c": 510}


def test_the_first_client_of_all_starts_at_zero():
    at, call = desk(), Calls()
    at.arrive(call("a"))
    assert at.scheduler.counters == {"a": 0}


def test_without_the_lift_idle_time_gives_an_advantage():
    at, call = desk(lift="none"), Calls()
    serve(at, call, "a", 500)
    at.arrive(call("b"), call("a"), call("c"))
    assert at.scheduler.counters == {"a": 500, "b": 0, "c": 0}


def test_a_recomputation_is_not_charged_and_a_retracted_client_is_lifted_as_on_arrival():
    at, call = desk(), Calls()
    request, other = call("a", tail=20), call("b", tail=90)
    at.arrive(request, other)
    assert at.run_pass() == [request, other]
    waiting = call("b")
    at.arrive(waiting)
    assert at.scheduler.counters == {"a": 20, "b": 90}
    at.retract(request)
    assert at.scheduler.counters == {"a": 90, "b": 90}  # only b waits, so lines 11-13 apply
    assert at.run_pass() == [request, waiting]
    assert at.scheduler.counters == {"a": 90, "b": 91}


def test_ties_rotate():
    """The first of two equals is the one picked longer ago, and never the lowest name."""
    at, call = desk(), Calls()
    sizes = {"b": [10, 10, 10], "a": [5, 5, 10, 10], "c": [10, 10]}
    requests = {c: [call(c, tail=size) for size in sizes[c]] for c in sizes}
    at.arrive(*(r for mine in requests.values() for r in mine))
    # b, a, c were never picked, so they go in order of arrival. At (10, 5, 10), a goes. At (10, 10,
    # 10), b was picked longest ago.
    order = [request.client for request in at.run_pass()]
    assert order == ["b", "a", "c", "a", "b", "c", "a", "b", "a"]


def test_weights_divide_the_charge():
    at, call = desk(weights={"a": 4, "b": 0.5}), Calls()
    at.arrive(call("a", tail=20), call("b", tail=20), call("c", tail=20))
    at.run_pass()
    for client in "abc":
        at.scheduler.on_tokens(client, 2)
    assert at.scheduler.counters == {"a": 5 + 1, "b": 40 + 8, "c": 20 + 4}


def test_service_is_in_proportion_to_the_weights():
    """The ratios are 1:2:3:4, within 3%, as in the artifact."""
    weights = {"a": 1, "b": 2, "c": 3, "d": 4}
    engine, call = ToyEngine(VTC(VTC.Params(weights=weights)), 400, "abcd"), Calls()
    for _ in range(1000):
        for client in "abcd":
            while engine.waiting(client) < 30:
                engine.submit(call(client, tail=10, max_new=10))
        engine.step()
    served = {client: engine.trace.service_of(client) for client in "abcd"}
    share = sum(served.values()) / sum(weights.values())
    assert all(abs(served[c] / weights[c] / share - 1) < 0.03 for c in "abcd")


@pytest.mark.parametrize(
    ("params", "view"),
    [
        ({}, "actual"),
        ({"charge": "input"}, "client"),
        ({"lift": "none"}, None),
        ({"weights": {"a": 2}}, None),
        ({"weights": {"b": 3.0}}, "actual"),
    ],
)
def test_the_bound_is_stated_for_the_view_that_is_charged(params, view):
    scheduler = VTC(VTC.Params(**params))
    scheduler.prepare(Setup(weights={"b": 3.0}) if "weights" in params else Setup())
    bound = scheduler.service_bound()
    assert getattr(bound, "view", None) == view
    assert isinstance(bound, NoBound) == (view is None)
