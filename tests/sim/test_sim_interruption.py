"""Test that a run stopped between any two events leaves consistent records."""

import math

import pytest

from fairbench.sim.run import simulate
from tests.invariants import check_all
from tests.sim.sim_helpers import small_spec
from tests.slow_params import slow


def after(polls):
    """Return an ``interrupted`` that is true after ``polls`` calls."""
    left = iter(range(polls))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("scheduler", ["lpm", "vtc", "d2lpm"])
@pytest.mark.parametrize("polls", [0, 7, 333, *slow(1, 50, 1000)])
def test_all_records_so_far_are_kept_and_consistent(scheduler, polls, monkeypatch):
    monkeypatch.setattr("fairbench.sim.run.EVENTS_AT_ONCE", 1)
    result = simulate(
        small_spec(scheduler, "tot", pool=9_000, dp=2, flags={"num_programs": 4}),
        interrupted=after(polls),
    )
    assert not result.complete
    check_all(result)
    for key, value in result.summary.items():
        assert not isinstance(value, float) or math.isfinite(value), key
    assert result.summary["window_start_s"] <= result.summary["window_end_s"]


def test_an_uninterrupted_run_is_complete():
    assert simulate(small_spec("vtc", "chat"), interrupted=after(10**9)).complete
