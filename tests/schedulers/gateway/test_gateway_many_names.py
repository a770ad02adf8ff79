"""Test many client names: a gateway forgets those that are idle longest, and keeps active ones."""

import tracemalloc

import pytest

from fairbench.schedulers.gateway import queue
from fairbench.schedulers.gateway.queue import IdleClients
from tests.schedulers.gateway.gateway_helpers import Desk, one_at_a_time

MOST, BATCH = 20, 5
BOUNDED = ("vtc", "vtc-predict", "lcf", "dlpm", "dlpm-hold", "drr", "mdrr", "wfq")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(queue, "MAX_CLIENTS", MOST)
    monkeypatch.setattr(queue, "BATCH", BATCH)


def known(desk):
    return set(desk.gateway.balances[0])


def served(desk, names, **request):
    """Send a request per name, each answered before the next."""
    for name in names:
        desk.arrive(name, **request)
        desk.answer(desk.sent[-1])


def test_the_clients_idle_for_longest_are_forgotten_in_batches(few):
    clients = IdleClients()
    gone = []
    for number in range(MOST + 1):
        clients.begin_request(f"c{number}")
        clients.begin_request("busy")
        gone += clients.end_request(f"c{number}")
    assert gone == [f"c{number}" for number in range(BATCH)]
    for _ in range(MOST):
        assert clients.end_request("busy") == ()
    assert clients.end_request("busy") == ()


@pytest.mark.parametrize("policy", BOUNDED)
def test_a_policy_remembers_a_limited_number_of_clients(policy, few):
    desk = Desk(policy, concurrency__requests=2)
    served(desk, (f"c{number}" for number in range(10 * MOST)))
    assert len(known(desk)) <= MOST + 2


@pytest.mark.parametrize("policy", BOUNDED)
def test_clients_with_requests_are_not_forgotten(policy, few):
    desk = Desk(policy, concurrency__requests=2)
    held = desk.arrive("held", 40)
    served(desk, (f"c{number}" for number in range(10 * MOST)))
    waiting = [desk.arrive("waits", 40) for _ in range(3)]
    served(desk, (f"d{number}" for number in range(MOST)))
    desk.answer(held, 7)
    for request in waiting:
        if request in desk.at:
            desk.answer(request, 7)
    assert desk.refused == desk.shed == []


def test_a_client_that_returns_to_vtc_is_owed_nothing(few):
    desk = one_at_a_time("vtc")
    desk.arrive("steady", 1000)
    served(desk, ["back"], tokens=10)
    for number in range(10 * MOST):
        desk.arrive("steady", 1000)
        desk.answer()
        served(desk, [f"c{number}"], tokens=1000)
    assert "back" not in known(desk)
    desk.arrive("steady", 1000)
    desk.arrive("back", 10)
    balances = desk.gateway.balances[0]
    assert balances["back"] >= balances["steady"] - 2000


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["vtc", "dlpm", "drr"])
def test_ten_thousand_names_take_no_more_memory_than_six_thousand(policy, monkeypatch):
    """Dictionaries keep their size after names are forgotten, so they grow with the first names."""
    monkeypatch.setattr(queue, "MAX_CLIENTS", queue.MAX_CLIENTS // 10)
    monkeypatch.setattr(queue, "BATCH", queue.BATCH // 10)
    desk = Desk(policy, concurrency__requests=2)

    def come_and_go(names):
        served(desk, (f"client-{name}" for name in names))
        desk.sent.clear()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = come_and_go(range(6_000))
        after = come_and_go(range(6_000, 10_000))
    finally:
        tracemalloc.stop()
    assert after < before + 2**16


def test_a_client_that_came_back_is_not_forgotten_as_idle(few):
    clients = IdleClients()
    for number in range(MOST):
        clients.begin_request(f"c{number}")
        clients.end_request(f"c{number}")
    clients.begin_request("c0")
    gone = []
    for name in ("d0", "d1"):
        clients.begin_request(name)
        gone += clients.end_request(name)
    assert gone == [f"c{number}" for number in range(1, 1 + BATCH)]
