"""RPM's two windows by hand ([VTC] §5.1, §5.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_desk import Desk
from local_requests import Calls

from fairbench.errors import UsageError
from fairbench.schedulers.local.rpm import RPM
from fairbench.schedulers.registry import build_local


def accepted(times_s, client="a", **params):
    """Which arrivals of one client are taken in."""
    scheduler, call = RPM(RPM.Params(**params)), Calls()
    return [time_s for time_s in times_s if scheduler.accepts(call(client), time_s)]


def test_the_sliding_window_counts_what_was_accepted_in_the_last_60_seconds():
    # 20 and 30 are refused and leave no trace: at 60.5 only the one of 10 counts (and 0 is over).
    assert accepted([0, 10, 20, 30, 60.5, 61, 70.5], limit=2) == [0, 10, 60.5, 70.5]


def test_a_request_exactly_60_seconds_old_still_counts():
    assert accepted([0, 60, 60.25], limit=1) == [0, 60.25]


def test_the_fixed_window_starts_anew_each_minute():
    times_s = [50, 58, 59, 60, 61, 62, 119, 120]
    assert accepted(times_s, limit=2, window="fixed") == [50, 58, 60, 61, 120]


def test_clients_have_a_window_each():
    scheduler, call = RPM(RPM.Params(limit=1)), Calls()
    arrivals = [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    taken = [client for client, time_s in arrivals if scheduler.accepts(call(client), time_s)]
    assert taken == ["a", "b"]


@given(
    st.lists(st.integers(0, 400), max_size=40).map(sorted),
    st.integers(1, 4),
    st.sampled_from(["sliding", "fixed"]),
)
def test_windows_against_counting(times_s, limit, window):
    taken: list[int] = []
    for now_s in times_s:
        recent = [
            t for t in taken if (now_s - t <= 60 if window == "sliding" else t // 60 == now_s // 60)
        ]
        if len(recent) < limit:
            taken.append(now_s)
    assert accepted(times_s, limit=limit, window=window) == taken


def test_what_is_accepted_is_served_in_order_and_the_first_that_does_not_fit_ends_the_pass():
    at, call = Desk(RPM(RPM.Params())), Calls()
    small, large, last = call("b", tail=1), call("a", tail=9), call("b", tail=1)
    at.arrive(small, large, last)
    assert at.run_pass(lambda request: request is not large) == [small]
    assert at.offered == [small, large]


@pytest.mark.parametrize("setting", [{"rpm.limit": 0}, {"rpm.window": "rolling"}])
def test_settings_are_checked(setting):
    with pytest.raises(UsageError, match=next(iter(setting))):
        build_local("rpm", setting)
