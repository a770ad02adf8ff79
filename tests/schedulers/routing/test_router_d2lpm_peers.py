"""Test D2LPM routers that exchange totals: their knowledge, and differences between workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts import worker_credits
from fairbench.schedulers.peers import Exchanges
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from tests.schedulers.routing.router_helpers import answer, request
from tests.strategies import examples


def routers(number, workers=2, quantum=50, **params):
    made = [D2LPM(D2LPM.Params(worker_quantum=quantum, **params), workers) for _ in range(number)]
    for one in made:
        one.prepare(Setup())
        one.join_peers()
    return made


def exchange(made):
    totals = [one.export_totals() for one in made]
    for number, one in enumerate(made):
        for origin, told in enumerate(totals):
            if origin != number:
                one.merge_totals(str(origin), told, 0.0)


def spent(made, client, worker):
    """Return the charges of all routers, summed from their exports."""
    return sum(one.charged_totals().get(client, {}).get(worker, 0.0) for one in made)


def test_only_schedulers_with_totals_exchange_totals():
    assert isinstance(routers(1)[0], Exchanges)
    assert not isinstance(LeastLoaded(LeastLoaded.Params(), 2), Exchanges)


def test_a_round_granted_by_two_routers_together_counts_once():
    one, other = routers(2)
    one.route(request(0, "a", ("x", 30)), 0.0)
    other.route(request(1, "a", ("y", 20)), 0.0)
    exchange([one, other])
    assert one.credit["a"] == other.credit["a"]
    assert sum(one.credit["a"].values()) == 2 * 50 - 30 - 20


def test_late_repeated_and_lost_messages_do_no_harm():
    one, other = routers(2)
    for number in range(6):
        other.route(request(number, "a", (f"p{number}", 30)), 0.0)
        if number == 2:
            early = other.export_totals()
    late = other.export_totals()
    one.merge_totals("1", late, 0.0)
    known = dict(one.credit["a"])
    assert known == other.credit["a"]
    for again in (late, early):
        one.merge_totals("1", again, 0.0)
    assert one.credit["a"] == known


def test_a_failed_dispatch_is_refunded_at_every_router():
    one, other = routers(2)
    sent = request(0, "a", ("x", 30))
    worker = one.route(sent, 0.0)
    exchange([one, other])
    one.on_failure(sent, worker, 0.0)
    exchange([one, other])
    assert one.credit["a"] == other.credit["a"] == {0: 50, 1: 50}


@pytest.mark.parametrize("busy", [False, True])
def test_a_late_router_knows_everything_after_all_messages(busy):
    made = routers(3)
    for number in range(30):
        one = made[number % 3]
        sent = request(number, "a", (f"p{number}", 30))
        one.on_finish(sent, one.route(sent, 0.0), answer(1), 0.0)
        exchange(made)
    late = routers(1)[0]
    if busy:  # and charges the client before a message names it
        late.route(request(30, "a", ("late", 30)), 0.0)
    exchange([*made, late])
    assert [one.credit["a"] for one in made] == [late.credit["a"]] * 3


def test_a_worker_that_is_absent_for_one_router_alone_is_charged_once():
    one, other = routers(2)
    for number in range(8):
        one.route(request(number, "a", (f"p{number}", 30)), 0.0)
    exchange([one, other])
    known = dict(other.credit["a"])
    one.on_worker_leave(1, 0.0)
    exchange([one, other])
    one.on_worker_join(1, 0.0)
    exchange([one, other])
    assert other.credit["a"] == known


def test_a_client_without_reports_counts_as_unused(monkeypatch):
    monkeypatch.setattr("fairbench.schedulers.parts.worker_credits.MAX_CLIENTS", 2)
    monkeypatch.setattr("fairbench.schedulers.parts.worker_credits.BATCH", 1)
    one, other = routers(2)
    sent = request(0, "b", ("x", 10))
    other.on_finish(sent, other.route(sent, 0.0), answer(1), 0.0)
    exchange([one, other])
    one.route(request(1, "a", ("y", 10)), 0.0)
    exchange([one, other])
    assert list(one.credit) == ["b", "a"]


def test_a_forgotten_client_starts_with_at_most_a_quantum(monkeypatch):
    monkeypatch.setattr("fairbench.schedulers.parts.worker_credits.MAX_CLIENTS", 2)
    monkeypatch.setattr(worker_credits, "BATCH", 1)
    one, other = routers(2)
    for number in range(20):
        sent = request(number, "a", (f"p{number}", 90))
        one.on_finish(sent, one.route(sent, 0.0), answer(1), 0.0)
    exchange([one, other])
    for client in ("b", "c", "d"):
        one.route(request(50, client, ("q", 10)), 0.0)
    assert "a" not in one.credit
    exchange([one, other])
    assert max(one.credit["a"].values()) <= 50


@examples(60)
@given(st.data(), st.integers(1, 3), st.integers(2, 3), st.sampled_from([1, 50, 1000]))
def test_total_charges_of_one_client_differ_little_between_workers(data, number, workers, quantum):
    """The bound is Q + L + 2 O + D, where D is what a router had not yet received."""
    made = routers(number, workers, quantum)
    flights = {worker: [] for worker in range(workers)}
    messages, unheard, largest, under_way = [], 0.0, 0, 0
    for step in range(60):
        what = data.draw(st.sampled_from(["route", "route", "finish", "tell", "hear"]))
        router = data.draw(st.integers(0, number - 1))
        if what == "route":
            sent = request(step, "f", (f"doc{data.draw(st.integers(0, 2))}", 40), (f"t{step}", 20))
            before = {w: spent(made, "f", w) - heard(made, router, w) for w in range(workers)}
            worker = made[router].route(sent, 0.0)
            unheard = max(unheard, before[worker])
            flights[worker].append((router, sent, data.draw(st.integers(1, 30))))
            largest = max(largest, sent.input_tokens)
            under_way = max(under_way, sum(output for _, _, output in flights[worker]))
        elif what == "finish":
            worker = data.draw(st.integers(0, workers - 1))
            if flights[worker]:
                owner, sent, output = flights[worker].pop(0)
                made[owner].on_finish(sent, worker, answer(output), 0.0)
        elif what == "tell":
            messages.append((router, made[router].export_totals()))
        elif messages:
            origin, totals = data.draw(st.sampled_from(messages))
            if origin != router:
                made[router].merge_totals(str(origin), totals, 0.0)
        charged = [spent(made, "f", worker) for worker in range(workers)]
        assert max(charged) - min(charged) < quantum + largest + 2 * under_way + unheard
    exchange(made)
    credits_ = [one.credit.get("f", {}) for one in made]
    assert all(one == pytest.approx(credits_[0]) for one in credits_)


def heard(made, router, worker):
    """Return a router's knowledge of all charges at a worker: its own and the received ones."""
    one = made[router]
    told = [totals.charged for totals in one.heard_totals().values()]
    sums = [of.get("f", {}).get(worker, 0.0) for of in [*told, one.charged_totals()]]
    return sum(sums)
