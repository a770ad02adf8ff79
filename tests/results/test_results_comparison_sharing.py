"""Test sharing incentives with bounds, and the lowest of several."""

from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.reasons import NAN, Noted
from fairbench.metrics.sharing_incentive import incentive, worst
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
    assert found.bound == bound
    assert found.value == value or (value is None and isnan(found.value))
    assert bool(found.reason) == (value is None)


def test_an_undefined_latency_has_no_ratio():
    found = incentive(client(1, p50_s=None), alone_row(1), 50, censored=False)
    assert isnan(found.value)


def test_without_clients_there_is_no_worst_incentive():
    assert isnan(worst([]).value)


RATIOS = st.lists(
    st.builds(Noted, st.floats(0.1, 10), bound=st.sampled_from(["", ">", "<"])),
    min_size=1,
    max_size=5,
)


def possible(ratio):
    """Return the interval that contains the true ratio."""
    value = ratio.value
    return {"": (value, value), ">": (value, inf), "<": (0.0, value)}[ratio.bound]


@given(RATIOS)
def test_the_worst_is_bounded_as_tightly_as_possible(ratios):
    found = worst(ratios)
    # The largest ratio lies between the largest lower and the largest upper end.
    least, most = (max(possible(ratio)[end] for ratio in ratios) for end in (0, 1))
    if least == most:
        assert found == Noted(least)
    elif most == inf:
        assert found == Noted(least, bound=">")
    else:
        assert found == Noted(most, bound="<")


@given(RATIOS)
def test_one_undefined_incentive_makes_the_worst_undefined(ratios):
    assert worst([*ratios, Noted(NAN, "why")]) == Noted(NAN, "why")
