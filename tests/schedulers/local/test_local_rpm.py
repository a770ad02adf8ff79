"""Test RPM's windows, and both treatments of requests over the limit ([VTC] §5.1, §5.3)."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.local.rpm import RPM
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import QueueView
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def accepted(times_s, client="a", **params):
    """Return the arrivals of a client that are accepted."""
    scheduler, call = RPM(RPM.Params(**params)), Calls()
    return [time_s for time_s in times_s if scheduler.accepts(call(client), time_s)]


def test_the_sliding_window_counts_requests_accepted_in_the_last_60_seconds():
    # The requests at 20 and 30 are refused and do not count. At 60.5, only the request of 10
    # counts, because that of 0 has expired.
    assert accepted([0, 10, 20, 30, 60.5, 61, 70.5], limit=2) == [0, 10, 60.5, 70.5]


def test_a_request_exactly_60_seconds_old_still_counts():
    assert accepted([0, 60, 60.25], limit=1) == [0, 60.25]


def test_the_fixed_window_restarts_each_minute():
    times_s = [50, 58, 59, 60, 61, 62, 119, 120]
    assert accepted(times_s, limit=2, window="fixed") == [50, 58, 60, 61, 120]


def test_each_client_has_a_separate_window():
    scheduler, call = RPM(RPM.Params(limit=1)), Calls()
    arrivals = [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    taken = [client for client, time_s in arrivals if scheduler.accepts(call(client), time_s)]
    assert taken == ["a", "b"]


@given(
    st.lists(st.integers(0, 400), max_size=40).map(sorted),
    st.integers(1, 4),
    st.sampled_from(["sliding", "fixed"]),
)
def test_windows_equal_counting(times_s, limit, window):
    taken: list[int] = []
    for now_s in times_s:
        recent = [
            t for t in taken if (now_s - t <= 60 if window == "sliding" else t // 60 == now_s // 60)
        ]
        if len(recent) < limit:
            taken.append(now_s)
    assert accepted(times_s, limit=limit, window=window) == taken


def test_accepted_requests_are_served_in_order_and_the_first_that_does_not_fit_ends_the_pass():
    at, call = Desk(RPM(RPM.Params())), Calls()
    small, large, last = call("b", tail=1), call("a", tail=9), call("b", tail=1)
    at.arrive(small, large, last)
    assert at.run_pass(lambda request: request is not large) == [small]
    assert at.offered == [small, large]


@pytest.mark.parametrize(
    "setting", [{"rpm.limit": 0}, {"rpm.window": "rolling"}, {"rpm.over": "queue"}]
)
def test_settings_are_checked(setting):
    with pytest.raises(UsageError, match=next(iter(setting))):
        build_local("rpm", setting)


def released(times_s, **params) -> list[float]:
    """Return when each request of a client is released, on an idle worker that asks when woken."""
    scheduler, call = RPM(RPM.Params(over="delay", **params)), Calls()
    view, out = QueueView(), {}
    for number, time_s in enumerate(times_s):
        request = call("a")
        while _turn(scheduler, view, out, time_s) is not None:
            pass
        assert scheduler.accepts(request, time_s)
        scheduler.on_arrival(request, view, time_s)
        view.enter(request)
        _pass(scheduler, view, out, time_s)
        assert len(out) + len(view) == number + 1
    while _turn(scheduler, view, out, inf) is not None:
        pass
    assert not len(view)
    return [out[number] for number in range(len(times_s))]


def _turn(scheduler, view, out, until_s) -> float | None:
    """Return the next time at which the scheduler wants to be asked, up to ``until_s``."""
    wake_s = scheduler.wake_s(view, max(out.values(), default=0.0)) if len(view) else None
    if wake_s is None or wake_s > until_s:
        return None
    before = len(out)
    _pass(scheduler, view, out, wake_s)
    assert len(out) > before, "it woke for nothing"
    return wake_s


def _pass(scheduler, view, out, now_s) -> None:
    def admit(request) -> Tried:
        view.leave(request)
        scheduler.on_admitted(request, request.input_tokens, recompute=False)
        out[request.request_id] = now_s
        return Tried.ADMITTED

    drive(scheduler.select(view, now_s), admit)


def test_a_request_is_delayed_to_the_next_minute_with_room():
    # At two a minute, the third of the first minute and one more are released at 60, and the next
    # at 120.
    arrivals_s = [50, 51, 52, 53, 54, 70, 200]
    assert released(arrivals_s, limit=2, window="fixed") == [50, 51, 60, 60, 120, 120, 200]


def test_a_request_is_delayed_until_the_sliding_window_has_room():
    assert released([0, 10, 20, 30, 200], limit=2) == [0, 10, 60, 70, 200]


@given(
    st.lists(st.integers(0, 400), max_size=30).map(sorted),
    st.integers(1, 4),
    st.sampled_from(["sliding", "fixed"]),
)
def test_delayed_requests_go_in_order_as_soon_as_the_limit_allows(times_s, limit, window):
    def crowd(out, now_s):
        if window == "fixed":
            return sum(t // 60 == now_s // 60 for t in out)
        return sum(now_s - 60 < t <= now_s for t in out)

    expected: list[int] = []
    for time_s in times_s:
        now_s = max(time_s, expected[-1] if expected else 0)
        while crowd(expected, now_s) >= limit:
            now_s += 1
        expected.append(now_s)
    assert released(times_s, limit=limit, window=window) == expected


def test_a_delayed_request_delays_no_others_and_may_be_withdrawn():
    scheduler, call, view = RPM(RPM.Params(limit=1, over="delay")), Calls(), QueueView()
    requests = [call("a"), call("a"), call("b")]
    for request in requests:
        assert scheduler.accepts(request, 5.0)
        view.enter(request)
    assert scheduler.balances() == {"a": 1}
    out: dict[int, float] = {}
    _pass(scheduler, view, out, 5.0)
    assert out == {0: 5.0, 2: 5.0}
    view.leave(requests[1])
    scheduler.on_finish(requests[1])
    assert scheduler.wake_s(view, 5.0) is None
    assert scheduler.balances() == {}
