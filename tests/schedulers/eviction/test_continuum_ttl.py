"""Test Continuum's TTL: hand-computed times, and a brute-force oracle of the formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.eviction.policies import Leaf
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.program_states import IDLE_PROGRAMS
from fairbench_rivals.eviction.continuum_ttl import TurnCorrelation, best_ttl_s


def turn(program, arrival_s=0.0, left=None):
    return Request(1, "x", program, 0, (), 1, 1, arrival_s, calls_left=left)


def after(returns, gap_s, wait_s=0.0):
    """Return a policy that saw this many turns return, each ``gap_s`` after the last end."""
    policy = build_eviction("continuum-ttl", {})
    for program in range(1, returns + 1):
        policy.on_finish(turn(program), 0.0)
        policy.on_start(turn(program, gap_s), gap_s + wait_s)
    return policy


def pinned_s(policy, **facts):
    return policy.on_finish(turn(9_999, **facts), 100.0) - 100.0


@pytest.mark.parametrize(
    ("gaps_s", "benefit_s", "ttl_s"),
    [
        ([1, 2, 10, 20], 8, 2),  # 2 - 1, 4 - 2; a TTL above 8 s cannot be worth its time
        ([1, 2, 10, 20], 40, 10),  # 10 - 1, 20 - 2, 30 - 10, 40 - 20: the first of two maxima
        ([1, 2, 10, 20], 3, 0),  # 0.75 - 1, 1.5 - 2
        ([0, 5], 2, 0),
        ([], 2, 0),
        ([1], -3, 0),
    ],
)
def test_the_ttl_maximises_the_expected_benefit_minus_the_time(gaps_s, benefit_s, ttl_s):
    assert best_ttl_s(gaps_s, benefit_s) == ttl_s


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(-5, 60))
def test_the_ttl_equals_a_search_over_all_candidates(gaps_s, benefit_s):
    def value(ttl_s):
        fraction = sum(gap_s <= ttl_s for gap_s in gaps_s) / max(1, len(gaps_s))
        return fraction * benefit_s - ttl_s

    candidates = sorted({0, *gaps_s})
    assert best_ttl_s(sorted(gaps_s), benefit_s) == max(candidates, key=value)


@pytest.mark.parametrize(
    ("turns", "eta"),
    [
        ([], 1.0),
        ([1], 1.0),  # undefined
        ([4, 4], 1.0),  # each ended turn leaves one less
        ([1, 3], 5 / 11),  # (1, 0), (1, 2), (2, 1), (3, 0): covariance -5, variances 11
    ],
)
def test_eta_is_the_negative_correlation_of_ended_and_remaining_turns(turns, eta):
    memory = TurnCorrelation()
    for one in turns:
        memory.learn(one)
    assert memory.eta == pytest.approx(eta)


@pytest.mark.parametrize(
    ("returns", "gap_s", "wait_s", "ttl_s"),
    [
        (100, 1.0, 9.0, 2.0),  # too few gaps
        (101, 1.0, 9.0, 1.0),  # the pin of 2 s was alive, so Q is 0, and 1 x 2 - 1 > 0
        (101, 5.0, 3.0, 0.0),  # the pin had ended: Q is 3, and 1 x (3 + 2) - 5 = 0
        (101, 5.0, 4.0, 5.0),  # Q is 4, and 1 x (4 + 2) - 5 > 0
    ],
)
def test_a_turn_is_pinned_for_the_ttl(returns, gap_s, wait_s, ttl_s):
    assert pinned_s(after(returns, gap_s, wait_s)) == ttl_s


def test_short_sessions_make_waits_count_less():
    policy = after(101, 5.0, 4.0)
    for program, turns in ((1_001, 1), (1_002, 3)):
        for number in range(turns):
            policy.on_finish(turn(program, left=turns - 1 - number), 0.0)
    assert policy._memory.eta == pytest.approx(5 / 11)
    assert pinned_s(policy) == 0.0  # 4 x 5 / 11 + 2 < 5


def test_only_turns_of_a_session_that_goes_on_are_pinned():
    policy = build_eviction("continuum-ttl", {})
    assert policy.on_finish(turn(1), 7.0) == 9.0
    assert policy.on_finish(turn(1, left=0), 8.0) == 8.0
    assert policy.on_finish(turn(0), 9.0) == 9.0, "a request without a session"
    assert not policy._sessions


def test_a_gap_is_counted_once_and_not_for_a_turn_beside_another():
    policy = build_eviction("continuum-ttl", {})
    policy.on_finish(turn(1), 10.0)
    policy.on_start(turn(1, 4.0), 11.0)  # arrived before the end
    assert not policy._gaps_s
    for _ in range(2):  # a retracted turn starts twice
        policy.on_start(turn(1, 13.0), 14.0)
    assert list(policy._gaps_s) == [3.0]
    assert list(policy._waits_s) == [1.0]


def test_pins_outlast_unpinned_tokens_and_end_in_order():
    policy = build_eviction("continuum-ttl", {})
    first, second, last = (policy.on_finish(turn(one), 10.0 * one) for one in (1, 2, 3))
    ended = policy.on_finish(turn(4, left=0), 30.0)
    leaves = {
        "pinned": Leaf((3, 0, 0), keep_s=last),
        "unpinned": Leaf((4, 0, 0), keep_s=ended),
        "expired": Leaf((9, 0, 0), keep_s=first),
        "expired later": Leaf((2, 0, 0), keep_s=second),
        "awaited": Leaf((0, 0, 0), keep_s=first, awaited=True),
    }
    order = sorted(leaves, key=lambda name: policy.rank(leaves[name]))
    assert order == ["expired", "expired later", "unpinned", "pinned", "awaited"]


def test_samples_and_sessions_are_bounded():
    policy = build_eviction("continuum-ttl", {})
    for number in range(IDLE_PROGRAMS + 5):
        policy.on_finish(turn(number + 1), 0.0)
    assert len(policy._sessions) == IDLE_PROGRAMS
    for number in range(IDLE_PROGRAMS):
        policy.on_start(turn(number + 6, float(number)), 0.0)
    assert len(policy._gaps_s) == len(policy._sorted_s) == 4_096
    assert policy._sorted_s[0] == IDLE_PROGRAMS - 4_096


def test_servers_whose_requests_do_not_name_sessions_refuse_the_policy():
    with pytest.raises(UsageError, match="eviction = 'continuum-ttl': must be one of lru"):
        resolve({"eviction": "continuum-ttl", "model": "m", "backend": {"kind": "sglang"}}, {})
