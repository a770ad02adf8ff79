"""Test round-robin, per-client round-robin, least loaded, and the fleet that they share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.parts.fleet import Fleet
from fairbench.schedulers.routing.client_round_robin import ClientRoundRobin
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench.schedulers.routing.round_robin import RoundRobin
from tests.schedulers.routing.router_helpers import answer, request


def routes(router, clients):
    return [router.route(request(n, c, ("p", 1)), 0.0) for n, c in enumerate(clients)]


def test_round_robin_counts_all_requests():
    assert routes(RoundRobin(RoundRobin.Params(), 3), "aabbbba") == [0, 1, 2, 0, 1, 2, 0]


def test_each_client_has_a_separate_rotation_and_start():
    router = ClientRoundRobin(ClientRoundRobin.Params(), 3)
    #                        a  b  c  a  d  a  b  b  a
    assert routes(router, "abcadabba") == [0, 1, 2, 1, 0, 2, 2, 0, 0]


@given(st.lists(st.sampled_from("abcde"), max_size=60), st.integers(1, 5))
def test_requests_of_a_client_are_spread_evenly(clients, workers):
    placed = routes(ClientRoundRobin(ClientRoundRobin.Params(), workers), clients)
    for client in "abcde":
        own = [worker for name, worker in zip(clients, placed, strict=True) if name == client]
        counts = [own.count(worker) for worker in range(workers)]
        assert max(counts) - min(counts) <= 1


def test_least_loaded_sends_to_the_shortest_queue():
    router = LeastLoaded(LeastLoaded.Params(), 3)
    sent = [request(n, "a", ("p", 1)) for n in range(5)]
    assert [router.route(r, 0.0) for r in sent[:3]] == [0, 1, 2]
    router.on_finish(sent[1], 1, answer(9), 0.0)
    assert router.route(sent[3], 0.0) == 1
    router.on_finish(sent[2], 2, answer(9), 0.0)
    assert router.route(sent[4], 0.0) == 2


def test_an_idle_cluster_is_used_in_rotation():
    router = LeastLoaded(LeastLoaded.Params(), 3)
    chosen = []
    for number in range(7):
        sent = request(number, "a", ("p", 1))
        chosen.append(router.route(sent, 0.0))
        router.on_finish(sent, chosen[-1], answer(1), 0.0)
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_only_ties_rotate():
    fleet = Fleet(3)
    assert fleet.cheapest({0: 1.0, 1: 1.0}) == 0
    assert fleet.cheapest({0: 2.0, 1: 1.0}) == 1
    assert fleet.cheapest({0: 1.0, 1: 1.0}) == 1
    assert fleet.cheapest({0: 1.0, 1: 1.0}) == 0
    assert fleet.cheapest({0: 9.0, 1: 1.0, 2: 1.0}) == 1


@pytest.mark.parametrize("router_class", [RoundRobin, ClientRoundRobin, LeastLoaded])
def test_a_worker_leaves_and_returns(router_class):
    router = router_class(router_class.Params(), 3)
    router.on_worker_leave(1, 0.0)
    router.on_worker_leave(1, 0.0)
    assert sorted(routes(router, "aaaa")) == [0, 0, 2, 2]
    router.on_worker_join(1, 0.0)
    after = [router.route(request(n, "a", ("p", 1)), 0.0) for n in range(10, 13)]
    assert 1 in after
    assert set(after) <= {0, 1, 2}


def test_requests_of_a_departed_worker_are_forgotten():
    fleet = Fleet(2)
    first, second = (request(n, "a", ("p", 1)) for n in range(2))
    fleet.dispatch(first, 1)
    fleet.dispatch(second, 1)
    fleet.remove_worker(1)
    assert not fleet.end_request(first, 1)
    fleet.dispatch(first, 0)  # sent again, to another worker
    fleet.add_worker(1)
    assert not fleet.end_request(first, 1), "finished in the worker's first life"
    assert not fleet.end_request(second, 1)
    assert (fleet.unfinished_at(0), fleet.unfinished_at(1)) == (1, 0)
    assert fleet.end_request(first, 0)
    assert not fleet.end_request(first, 0), "finished twice"
    assert (fleet.unfinished_at(0), fleet.unfinished_at(1)) == (0, 0)


def test_a_finish_at_a_departed_worker_is_harmless():
    router = LeastLoaded(LeastLoaded.Params(), 2)
    sent = [request(n, "a", ("p", 1)) for n in range(2)]
    assert [router.route(r, 0.0) for r in sent] == [0, 1]
    router.on_worker_leave(1, 0.0)
    router.on_finish(sent[1], 1, answer(5), 0.0)
    router.on_worker_join(1, 0.0)
    router.on_finish(sent[1], 1, answer(5), 0.0)
    # A request is in flight at worker 0, and none (not minus one) at worker 1, so the second choice
    # is a tie.
    assert router.route(request(2, "a", ("p", 1)), 0.0) == 1
    assert router.route(request(3, "a", ("p", 1)), 0.0) == 1
    assert router.route(request(4, "a", ("p", 1)), 0.0) == 0


def test_a_restart_without_a_leave_event_empties_the_queue():
    fleet = Fleet(2)
    fleet.dispatch(request(0, "a", ("p", 1)), 0)
    fleet.add_worker(0)
    assert fleet.workers == [0, 1]
    assert fleet.unfinished_at(0) == 0
