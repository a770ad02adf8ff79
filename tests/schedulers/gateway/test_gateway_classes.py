"""Test policies that order priorities: llm-d's cross-band fairness and smg's priority scheduler."""

from collections import Counter

import pytest

from fairbench.errors import UsageError
from tests.schedulers.gateway.gateway_helpers import Desk


def cross_band(priorities, times, **settings):
    """Return the priorities of the next requests, when 40 requests of each priority wait."""
    desk = Desk("cross-band", "concurrency", concurrency__requests=1, **settings)
    desk.arrive("warm", 1, priority=priorities[-1], go=False)
    for priority in priorities * 40:
        desk.arrive("a", 1, priority=priority, go=False)
    desk.go()
    before = len(desk.sent)
    desk.serve(times)
    return [request.priority for request in desk.sent[before - 1 :]]


EXPLICIT = {"cross_band__weights": "explicit"}


def test_credits_serve_six_three_and_one_in_that_order():
    shares = {"2": 6, "1": 3, "0": 1}
    found = cross_band([2, 1, 0], 19, cross_band__shares=shares, **EXPLICIT)
    assert found == 2 * (6 * [2] + 3 * [1] + [0])


def test_proportional_weights_are_distances_from_the_lowest_priority():
    found = Counter(cross_band([20, 10, 0], 32))
    assert found == {20: 21, 10: 11, 0: 1}


def test_linear_weights_count_ranks():
    found = cross_band([20, 10, 0], 5, cross_band__weights="linear")
    assert found == [20, 20, 20, 10, 10, 0]


def test_interleaving_serves_the_least_virtual_time():
    shares = {"1": 2, "0": 1}
    settings = {"cross_band__shares": shares, "cross_band__order": "interleaved", **EXPLICIT}
    # Virtual times of priority 1 are 0.5, 1.0, 1.5, ..., of priority 0 they are 1, 2, ... On a tie,
    # the higher priority goes first.
    assert cross_band([1, 0], 5, **settings) == [1, 0, 1, 1, 0, 1]


def test_the_clients_priorities_override_those_of_requests():
    desk = Desk("cross-band", "concurrency", concurrency__requests=1, gateway__priority={"b": 5})
    for client in "aaaaaabbbbbb":
        desk.arrive(client, go=False)
    desk.go()
    desk.serve(7)
    # priorities 5 and 0 have the weights 6 and 1
    assert "".join(request.client for request in desk.sent) == "bbbbbbaa"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shares": {"1": 2.0}}, "shares: has no effect with weights = 'proportional'"),
        (
            {"shares": {"high": 2.0}, "weights": "explicit"},
            "shares.high: the priority must be a whole",
        ),
        ({"order": "strict"}, "cross-band.order = 'strict'"),
        ({"shares": {"1": 0}, "weights": "explicit"}, "shares"),
    ],
)
def test_wrong_shares_are_one_line(settings, said):
    with pytest.raises(UsageError) as caught:
        Desk("cross-band", **{f"cross_band__{k}": v for k, v in settings.items()}).arrive("a")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def smg(slots):
    return Desk("smg-priority", "none", smg_priority__slots=slots)


def flood(desk, priority, number):
    return [desk.arrive("a", priority=priority, go=False) for _ in range(number)]


def sent(desk):
    return Counter(request.priority for request in desk.sent)


def test_a_class_may_not_use_slots_that_higher_classes_reserve():
    # of 400 slots, 32 are reserved for system, 128 for interactive, and 40 for default
    desk = smg(400)
    for priority in (-1, 0, 1):
        flood(desk, priority, 250)
    desk.go()
    # interactive may use all but 32, and the others what remains
    assert sent(desk) == {1: 250, 0: 118}
    desk = smg(400)
    flood(desk, -1, 400)
    desk.go()
    assert sent(desk) == {-1: 200}


def test_few_slots_are_reserved_for_the_highest_classes_only():
    desk = smg(100)  # 32 for system, 68 for interactive
    flood(desk, 0, 100)
    flood(desk, 1, 100)
    desk.go()
    assert sent(desk) == {1: 68}
    flood(desk, 2, 40)
    desk.go()
    assert sent(desk) == {1: 68, 2: 32}


def test_a_full_queue_refuses_and_an_old_request_is_given_up():
    desk = smg(1)
    flood(desk, 2, 66)
    assert len(desk.refused) == 2  # system queues 64
    desk.go()
    flood(desk, 0, 1)
    desk.now_s = 29.9
    desk.go()
    assert not desk.shed
    desk.now_s = 30.0
    desk.go()
    assert Counter(one.priority for one in desk.shed) == {2: 63}
    desk.now_s = 60.0
    desk.go()
    assert Counter(one.priority for one in desk.shed) == {2: 63, 0: 1}


def test_a_starved_class_goes_before_all_others_bulk_first():
    desk = smg(1)
    flood(desk, 2, 1)
    desk.go()
    for priority, arrival_s in ((-1, 0.0), (0, 95.0), (1, 121.0), (2, 124.0)):
        desk.now_s = arrival_s
        flood(desk, priority, 1)
    desk.now_s = 126.0
    desk.serve(4)
    assert [one.priority for one in desk.sent] == [2, -1, 0, 1, 2]


def test_priorities_beyond_the_classes_count_as_the_outermost():
    desk = smg(1)
    flood(desk, 9, 70)
    assert len(desk.refused) == 6
    desk = smg(1)
    flood(desk, -7, 2)
    desk.now_s = 120.0  # the only slot is reserved for system, except from starved requests
    desk.go()
    assert sent(desk) == {-7: 1}
    desk.now_s = 300.0
    desk.go()
    assert len(desk.shed) == 1
