"""Test how long the policy ``retention`` keeps tokens, by hand-computed gaps between calls."""

import pytest

from fairbench.core import Request
from fairbench.schedulers.eviction.registry import build_eviction


def turn(program, arrival_s=0.0, left=None):
    return Request(1, "x", program, 0, (), 1, 1, arrival_s, calls_left=left)


@pytest.mark.parametrize("wait_s", [0.0, 7.0])
def test_a_gap_ends_with_the_arrival_of_the_next_call(wait_s):
    policy = build_eviction("retention", {"retention.factor": 2.0})
    policy.on_finish(turn(1), 10.0)
    policy.on_start(turn(1, arrival_s=14.0), 14.0 + wait_s)
    assert policy.on_finish(turn(1), 100.0) == 100.0 + 2 * 4.0
    # the next gap of 9 s has a weight of 0.2: 4 + 0.2 x (9 - 4) = 5
    policy.on_start(turn(1, arrival_s=109.0), 109.0 + wait_s)
    assert policy.on_finish(turn(1), 200.0) == pytest.approx(200.0 + 2 * 5.0)


def test_a_call_beside_the_last_one_is_no_gap():
    policy = build_eviction("retention", {"retention.factor": 2.0})
    policy.on_finish(turn(1), 10.0)
    policy.on_start(turn(1, arrival_s=9.0), 12.0)
    assert policy.on_finish(turn(1), 20.0) == 20.0 + 2 * 10.0  # the gap before any was seen
