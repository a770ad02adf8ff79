"""Test Preble's priority groups as in the paper ([Preble] §3.3)."""

from __future__ import annotations

from collections import Counter

import pytest

from fairbench.schedulers.local.preble_groups import PrebleGroups
from fairbench_studies.preble.code.groups import PrebleGroupsCode
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def desk(**params) -> Desk:
    return Desk(PrebleGroups(PrebleGroups.Params(**params)))


def cached(at: Desk, call: Calls, tokens: int, client: str = "a"):
    """Let a request of 100 tokens arrive, of which ``tokens`` are cached."""
    request = call(client, tail=100)
    at.matched[request] = tokens
    at.arrive(request)
    return request


def test_63_cached_of_100_tokens_is_group_6():
    at, call = desk(), Calls()
    in_5, in_6, in_7 = (cached(at, call, tokens) for tokens in (59, 63, 70))
    also_6 = cached(at, call, 60)
    assert at.run_pass() == [in_7, in_6, also_6, in_5]


@pytest.mark.parametrize("groups", [7, 10, 49, 100])
def test_a_fraction_on_the_border_of_two_groups_is_in_the_upper_one(groups):
    """In floating point, 29 / 100 * 100 is 28.99..., a group too low."""
    at, call = desk(groups=groups), Calls()
    lower = []
    for step in range(1, groups):
        below, border = call("a", tail=groups * 3), call("a", tail=groups * 3)
        at.matched |= {below: step * 3 - 1, border: step * 3}
        at.arrive(below, border)
        lower.append((below, border))
    order = at.run_pass()
    assert all(order.index(border) < order.index(below) for below, border in lower)


def test_one_round_draws_ten_requests_of_the_first_group_down_to_one_of_the_last():
    at, call = desk(), Calls()
    for tokens in range(0, 100, 10):
        for _ in range(30):
            cached(at, call, tokens)
    drawn = Counter(at.matched[request] // 10 for request in at.run_pass(at_most=2 * 55))
    assert drawn == {group: 2 * (group + 1) for group in range(10)}


def test_the_round_continues_over_passes_of_one_request():
    at, call = desk(), Calls()
    for tokens in range(0, 100, 10):
        for _ in range(15):
            cached(at, call, tokens)
    groups = [at.matched[at.run_pass(at_most=1)[0]] // 10 for _ in range(55)]
    assert groups == [group for group in range(9, -1, -1) for _ in range(group + 1)]


def test_a_request_without_cached_tokens_does_not_starve():
    """Requests with cached prompts keep arriving. The uncached one is served within a round."""
    at, call = desk(), Calls()
    cold = cached(at, call, 0)
    served = []
    while cold not in served:
        cached(at, call, 99)
        cached(at, call, 99)
        served += at.run_pass(at_most=1)
    assert len(served) == 11


def test_a_request_is_grouped_once_in_the_first_pass_after_it_arrived():
    at, call = desk(), Calls()
    early, other = cached(at, call, 5), cached(at, call, 55)
    at.run_pass(lambda _: False)
    at.matched[early] = 99  # cached too late to count
    assert at.run_pass() == [other, early]


def test_a_group_keeps_the_order_of_arrival_and_retracted_requests_come_last():
    at, call = desk(), Calls()
    one, two = cached(at, call, 95), cached(at, call, 99)
    assert at.run_pass(at_most=1) == [one]
    three = cached(at, call, 91)
    at.retract(one)
    assert at.run_pass() == [two, three, one]


def test_stop_ends_the_pass_and_skip_tries_the_other_requests():
    for no_room, offered in (("stop", 2), ("skip", 4)):
        at, call = desk(no_room=no_room), Calls()
        requests = [cached(at, call, tokens) for tokens in (95, 85, 75, 65)]
        admitted = at.run_pass(lambda r, large=requests[1]: r is not large)
        assert at.offered == requests[:offered]
        assert admitted == [r for r in requests[:offered] if r is not requests[1]]


def test_a_request_that_did_not_fit_keeps_its_position_and_turn():
    at, call = desk(no_room="skip", groups=2), Calls()
    one, two, three = (cached(at, call, 90) for _ in range(3))
    assert at.run_pass(lambda r: r is three) == [three]
    assert at.run_pass() == [one, two]


@pytest.mark.parametrize("no_room", ["stop", "skip"])
def test_a_pass_that_is_closed_at_any_point_loses_no_request(no_room):
    """Passes are closed after an admission, and at a candidate that was never tried."""
    at, call = desk(no_room=no_room), Calls()
    requests = [cached(at, call, tokens) for tokens in (95, 95, 45, 5)]
    served = at.run_pass(at_most=1)
    untried = at.scheduler.select(at.view, 0.0)
    assert next(untried) is requests[1]
    untried.close()
    served += at.run_pass(at_most=1)
    assert served + at.run_pass() == requests


def test_an_aborted_request_is_never_offered():
    at, call = desk(), Calls()
    first, second = cached(at, call, 95), cached(at, call, 95)
    at.run_pass(lambda _: False)
    third = cached(at, call, 95)
    for request in (first, third):  # one request in a group, one not yet grouped
        at.view.leave(request)
        at.scheduler.on_finish(request)
    assert at.run_pass() == [second]
    at.scheduler.on_finish(second)
    assert at.run_pass() == []


def code_desk(**params) -> Desk:
    return Desk(PrebleGroupsCode(PrebleGroupsCode.Params(**params)))


def test_the_code_rounds_up_and_takes_from_one_group_per_pass():
    at, call = code_desk(), Calls()
    in_9, in_6, also_6, in_0, also_0 = (cached(at, call, t) for t in (91, 70, 61, 0, 10))
    passes = [at.run_pass() for _ in range(4)]
    assert passes == [[in_9], [in_6, also_6], [in_0, also_0], []]


def test_the_code_goes_down_through_the_groups_and_starts_again_at_the_top():
    at, call = code_desk(), Calls()
    low = cached(at, call, 15)
    assert at.run_pass() == [low]
    high, low = cached(at, call, 95), cached(at, call, 5)
    assert at.run_pass() == [low]  # the pointer was at group 0
    assert at.run_pass() == [high]


def test_the_code_takes_at_most_ten_times_the_group_and_skips_requests_without_room():
    at, call = code_desk(), Calls()
    requests = [cached(at, call, 15) for _ in range(25)]
    first = at.run_pass(lambda r: r is not requests[0])
    assert first == requests[1:20]
    assert at.run_pass() == [requests[0], *requests[20:]]


@pytest.mark.parametrize("scheduler", [PrebleGroups, PrebleGroupsCode])
def test_a_retracted_request_with_cached_outputs_is_in_the_highest_group(scheduler):
    """The cache holds its prompt of 100 tokens and 40 outputs, which is a hit of 1, not 1.4."""
    at, call = Desk(scheduler(scheduler.Params())), Calls()
    lower = cached(at, call, 85)
    whole = cached(at, call, 140)
    assert at.run_pass(at_most=1) == [whole]
    assert at.run_pass() == [lower]


@pytest.mark.parametrize(
    ("regroup", "first"), [("pass", "late"), ("arrival", "early"), (None, "early")]
)
def test_a_request_is_grouped_again_in_each_pass_only_if_asked(regroup, first):
    at, call = desk(regroup=regroup), Calls()
    blocker, early, late = (cached(at, call, tokens) for tokens in (90, 50, 10))
    assert at.run_pass(at_most=1) == [blocker]
    at.matched[late] = 80  # by now, the cache holds most of the prompt
    assert at.run_pass(at_most=1) == [{"early": early, "late": late}[first]]
    assert len(at.run_pass()) == 1


def test_regrouping_never_offers_an_aborted_request():
    at, call = desk(regroup="pass"), Calls()
    one, two, three = (cached(at, call, 50) for _ in range(3))
    assert at.run_pass(at_most=1) == [one]
    at.view.leave(two)
    at.scheduler.on_finish(two)
    assert at.run_pass() == [three]
