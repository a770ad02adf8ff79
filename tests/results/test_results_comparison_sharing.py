"""Test sharing incentives: bounds, and the lowest of several."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.results.comparison import incentive, worst
from fairbench.results.values import Value
from tests.results.comparison_helpers import alone_row, client


@pytest.mark.parametrize(
    ("censored", "alone", "value", "bound"),
    [
        (False, alone_row(1), 4.0, ""),
        (True, alone_row(1), 4.0, ">"),
        (False, alone_row(1, censored=["p99_s"]), 4.0, "<"),
        (False, alone_row(1, censored=["p50_s"]), 4.0, ""),
        (True, alone_row(1, censored=["p99_s"]), None, ""),
        (False, alone_row(1, p99_s=None), None, ""),
        (False, None, None, ""),
    ],
)
def test_a_ratio_has_its_range(censored, alone, value, bound):
    found = incentive(client(1), alone, 99, censored=censored)
    assert (found.raw, found.bound) == (value, bound)
    assert bool(found.reason) == (value is None)


def test_an_undefined_latency_has_no_ratio():
    found = incentive(client(1, p50_s=None), alone_row(1), 50, censored=False)
    assert found.raw is None


def test_without_clients_there_is_no_worst_incentive():
    assert worst([]).raw is None


RATIOS = st.lists(
    st.builds(Value, st.floats(0.1, 10), st.sampled_from(["", ">", "<"])), min_size=1, max_size=5
)


def possible(ratio):
    """Return the interval that contains the true ratio."""
    return {"": (ratio.raw, ratio.raw), ">": (ratio.raw, inf), "<": (0.0, ratio.raw)}[ratio.bound]


@given(RATIOS)
def test_the_worst_is_bounded_as_tightly_as_possible(ratios):
    found = worst(ratios)
    # The largest ratio lies between the largest lower and the largest upper end.
    least, most = (max(possible(ratio)[end] for ratio in ratios) for end in (0, 1))
    if least == most:
        assert found == Value(least)
    elif most == inf:
        assert found == Value(least, ">")
    else:
        assert found == Value(most, "<")


@given(RATIOS)
def test_one_undefined_incentive_makes_the_worst_undefined(ratios):
    assert worst([*ratios, Value(None, reason="why")]) == Value(None, reason="why")
