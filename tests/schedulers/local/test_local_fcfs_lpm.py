"""Test FCFS and LPM: the orders, in-batch deprioritisation, and LPM's fallback above 128."""

from __future__ import annotations

import pytest

from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.lpm import LPM
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def lpm(limit: int = 0) -> Desk:
    return Desk(LPM(LPM.Params(queue_limit=limit)))


def test_fcfs_admits_in_order_of_arrival_and_retracted_requests_last():
    desk, call = Desk(FCFS(FCFS.Params())), Calls()
    first, second, third, fourth = (call("abcd"[i]) for i in range(4))
    desk.arrive(first, second)
    assert desk.run_pass(at_most=1) == [first]
    desk.arrive(third)
    desk.retract(first)
    desk.arrive(fourth)
    assert desk.run_pass() == [second, third, first, fourth]


@pytest.mark.parametrize("scheduler", [FCFS(FCFS.Params()), LPM(LPM.Params())])
def test_no_request_behind_one_that_does_not_fit_is_tried(scheduler):
    desk, call = Desk(scheduler), Calls()
    small, large, behind = call("a", tail=5), call("a", tail=50), call("b", tail=5)
    desk.arrive(small, large, behind)
    assert desk.run_pass(lambda r: r.input_tokens < 20) == [small]
    assert desk.offered == [small, large]


def test_lpm_takes_the_longest_match_first_and_ties_in_order_of_arrival():
    desk, call = lpm(), Calls()
    requests = [call("a", tail=100) for _ in range(5)]
    desk.arrive(*requests)
    desk.matched = dict(zip(requests, [0, 50, 99, 50, 60], strict=True))
    order = [requests[i] for i in (2, 4, 1, 3, 0)]
    assert desk.run_pass() == order


def test_lpm_sorts_again_when_the_cache_has_changed():
    desk, call = lpm(), Calls()
    one, two, three = (call("a", tail=100) for _ in range(3))
    desk.arrive(one, two, three)
    desk.matched = {one: 10, two: 20, three: 30}
    assert desk.run_pass(at_most=1) == [three]
    desk.matched = {one: 90, two: 20}
    assert desk.run_pass() == [one, two]


def test_the_sort_is_stable_over_the_previous_order_and_not_over_arrival():
    desk, call = lpm(), Calls()
    one, two = call("a", tail=100), call("a", tail=100)
    desk.arrive(one, two)
    desk.matched = {two: 40}
    desk.run_pass(lambda _: False)  # the pass sorts the queue: two, one
    desk.matched = {}
    assert desk.run_pass() == [two, one]


@pytest.mark.parametrize(
    ("shared", "cached", "siblings_last"),
    [
        (32, 32, True),  # 32 tokens shared, 32 cached: both thresholds are met
        (32, 0, True),
        (31, 0, False),  # one token too few is shared
        (40, 33, False),  # one token too many is cached
    ],
)
def test_in_batch_siblings_of_a_cold_request_come_last(shared, cached, siblings_last):
    desk, call = lpm(), Calls()
    leader, sibling = (call("a", ("doc", shared), tail=50) for _ in range(2))
    other = call("b", tail=50)
    desk.arrive(leader, sibling, other)
    desk.matched = {leader: cached, sibling: cached}
    expected = [leader, other, sibling] if siblings_last else [leader, sibling, other]
    assert desk.run_pass() == expected  # last, but still admitted


def test_the_leader_is_the_first_in_the_list_and_not_the_first_to_arrive():
    desk, call = lpm(), Calls()
    one, two = (call("a", ("doc", 40), tail=60) for _ in range(2))
    desk.arrive(one, two)
    desk.matched = {two: 40, one: 39}
    desk.run_pass(lambda _: False)  # both are warm: two, one
    desk.matched = {}
    assert desk.run_pass() == [two, one]


@pytest.mark.parametrize(("waiting", "sorted_"), [(128, True), (129, False)])
def test_above_the_limit_the_queue_keeps_its_order(waiting, sorted_):
    desk, call = lpm(limit=128), Calls()
    requests = [call("a", tail=100) for _ in range(waiting)]
    desk.arrive(*requests)
    desk.matched = {requests[-1]: 99}
    first = requests[-1] if sorted_ else requests[0]
    assert desk.run_pass(at_most=1) == [first]


def test_the_fallback_keeps_the_stale_order_and_appends_newcomers():
    desk, call = lpm(limit=3), Calls()
    one, two, three, four = (call("a", tail=100) for _ in range(4))
    desk.arrive(one, two, three)
    desk.matched = {three: 30, two: 20, one: 10}
    desk.run_pass(lambda _: False)  # three, two, one
    desk.arrive(four)
    desk.matched = {one: 90, four: 99}  # would come first if prefixes were matched
    assert desk.run_pass(at_most=1) == [three]
    desk.retract(three)
    assert desk.run_pass() == [two, one, four, three]  # four requests wait again


def test_without_a_limit_a_long_queue_is_sorted():
    desk, call = lpm(), Calls()
    requests = [call("a", tail=100) for _ in range(300)]
    desk.arrive(*requests)
    desk.matched = {requests[200]: 50}
    assert desk.run_pass(at_most=1) == [requests[200]]
