"""Test sharing incentives: bounds, and the lowest of several."""

from math import inf

import pytest
from comparison_helpers import alone_row, client
from hypothesis import given
from hypothesis import strategies as st

from fairbench.results.comparison import Bound, Incentive, incentive, worst


@pytest.mark.parametrize(
    ("censored", "alone", "value", "bound"),
    [
        (False, alone_row(1), 4.0, Bound.EXACT),
        (True, alone_row(1), 4.0, Bound.LOWER),
        (False, alone_row(1, censored=["p99_s"]), 4.0, Bound.UPPER),
        (False, alone_row(1, censored=["p50_s"]), 4.0, Bound.EXACT),
        (True, alone_row(1, censored=["p99_s"]), None, Bound.EXACT),
        (False, alone_row(1, p99_s=None), None, Bound.EXACT),
        (False, None, None, Bound.EXACT),
    ],
)
def test_a_ratio_has_its_range(censored, alone, value, bound):
    found = incentive(client(1), alone, 99, censored=censored)
    assert (found.value, found.bound) == (value, bound)
    assert bool(found.reason) == (value is None)


def test_an_undefined_latency_has_no_ratio():
    found = incentive(client(1, p50_s=None), alone_row(1), 50, censored=False)
    assert found.value is None


def test_without_clients_there_is_no_worst():
    assert worst([]).value is None


RATIOS = st.lists(
    st.builds(Incentive, st.floats(0.1, 10), st.sampled_from(Bound)), min_size=1, max_size=5
)


def possible(ratio):
    """Return the interval that contains the true ratio."""
    return {
        Bound.EXACT: (ratio.value, ratio.value),
        Bound.LOWER: (ratio.value, inf),
        Bound.UPPER: (0.0, ratio.value),
    }[ratio.bound]


@given(RATIOS)
def test_the_worst_is_bounded_as_tightly_as_known(ratios):
    found = worst(ratios)
    # The largest ratio lies between the largest lower and the largest upper end.
    least, most = (max(possible(ratio)[end] for ratio in ratios) for end in (0, 1))
    if least == most:
        assert found == Incentive(least)
    elif most == inf:
        assert found == Incentive(least, Bound.LOWER)
    else:
        assert found == Incentive(most, Bound.UPPER)


@given(RATIOS)
def test_one_undefined_makes_the_worst_undefined(ratios):
    assert worst([*ratios, Incentive(None, reason="why")]) == Incentive(None, reason="why")
