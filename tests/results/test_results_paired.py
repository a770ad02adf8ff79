"""Test paired comparisons: the difference, the decision, and how many more seeds are needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.metric import Better
from fairbench.results.significance import (
    MIXED,
    MOST_SEEDS,
    Decision,
    difference,
    mean_value,
    seeds_needed,
    t_interval,
)
from fairbench.results.summary import Value

BETTER, WORSE, SAME, INCONCLUSIVE = Decision
SHARES = st.floats(0, 1)


def values(*raw):
    """``"> 3"`` is a lower bound."""
    return [Value(float(one[2:]), one[0]) if isinstance(one, str) else Value(one) for one in raw]


def decided(before, after, better=Better.LESS):
    return difference(values(*before), values(*after)).decision(better)


def test_the_mean_of_bounds_is_a_bound_of_the_same_kind_or_none():
    assert mean_value(values(1, 2)) == Value(1.5)
    assert mean_value(values(1, "> 2")) == Value(1.5, ">")
    assert mean_value(values("< 1", 2)) == Value(1.5, "<")
    # The mean of "at least 1" and "at most 3" is unknown.
    assert mean_value(values("> 1", "< 3")) == Value(None, reason=MIXED)
    assert mean_value([]) == Value(None)


def test_a_difference_equals_its_hand_computation():
    # The differences 1, 1.5 and 0.8 have mean 1.1 and deviation 0.36056; 4.30265 * 0.36056 /
    # sqrt(3) = 0.89567.
    found = difference(values(1, 2, 3), values(2, 3.5, 3.8))
    assert (found.runs, found.undefined, found.bounded) == (3, 0, False)
    numbers = (found.mean, found.low, found.high, found.deviation, found.p)
    assert numbers == pytest.approx((1.1, 0.20433, 1.99567, 0.36056, 0.0340), abs=1e-4)
    assert found.decision(Better.LESS) is WORSE
    assert found.decision(Better.MORE) is BETTER


def test_the_p_value_is_below_5_percent_if_the_interval_excludes_0():
    random = np.random.default_rng(5)
    for _ in range(200):
        found = difference(values(*random.normal(0.8, 1, 5)), values(*np.zeros(5)))
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_exchanging_the_sides_changes_the_sign():
    one, other = values(1, 2, 3), values(2, 3.5, 3.8)
    there, back = difference(one, other), difference(other, one)
    assert (there.mean, there.low, there.high) == (-back.mean, -back.high, -back.low)
    assert back.decision(Better.LESS) is BETTER


def test_equal_sides_are_equal_even_if_sums_are_rounded():
    assert decided((1.0, 2.0), (1.0, 2.0)) is SAME
    assert decided((0.1 + 0.2, 2.0), (0.3, 2.0)) is SAME
    assert decided((1.0, 2.0, 3.0), (1.1, 2.1, 3.1)) is WORSE  # always by the same amount


def test_one_seed_is_inconclusive():
    found = difference(values(1.0), values(9.0))
    assert (found.mean, found.low, found.high, found.p) == (8.0, None, None, None)
    assert found.decision(Better.LESS) is INCONCLUSIVE
    assert difference(values(1.0), values(1.0)).decision(Better.LESS) is INCONCLUSIVE
    assert difference([], []).decision(Better.LESS) is INCONCLUSIVE


def test_a_missing_value_is_counted_and_decides_nothing():
    found = difference(values(1, 2, 3, 4), values(11, None, 13, 14))
    assert (found.runs, found.undefined, found.mean) == (3, 1, 10)
    assert found.decision(Better.LESS) is INCONCLUSIVE
    assert found.obstacle == "undefined in 1 of 4 seeds"
    assert found.more_seeds() is None
    assert difference(values(None), values(1)).obstacle == "undefined in 1 of 1 seeds"


def test_bounds_decide_a_difference_if_they_can():
    # In two seeds, the second side is above 100 by an unknown amount.
    found = difference(values(10, 11, 12), values("> 100", 99.0, "> 101"))
    assert (found.low is not None, found.high) == (True, None)
    assert found.p is None
    assert found.decision(Better.LESS) is WORSE
    assert decided(("> 100", 99.0, "> 101"), (10, 11, 12)) is BETTER
    # The bounded value may be much higher, so it is unknown whether it is below.
    assert decided((100, 101, 102), (10, 11, "> 12")) is INCONCLUSIVE
    assert decided((10, 11, 12), (1, 2, "< 3")) is BETTER


def test_bounds_on_both_sides_decide_nothing():
    found = difference(values(10, "> 11", 12), values("> 100", 99, 98))
    assert (found.low, found.high, found.more_seeds()) == (None, None, None)
    assert found.obstacle == "only bounds are known"
    # equal bounds are not equal values
    assert decided(("> 5", "> 5"), ("> 5", "> 5")) is INCONCLUSIVE


def test_a_bound_on_the_mean_holds_for_any_true_values():
    """The lower end covers the mean of the true differences, some of which are only bounded below.

    The differences are normal but cut off at a run's end, and so skewed: 3% instead of 2.5% fail.
    """
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1500):
        true = random.normal(1.0, 1.0, size=5)
        seen = [f"> {1.5}" if one > 1.5 else float(one) for one in true]
        found = difference(values(0, 0, 0, 0, 0), values(*seen))
        covered += found.low is None or found.low <= 1.0
    assert covered / 1500 >= 0.96


def side_by_side(samples, seeds, effect, load=5.0, noise=1.0):
    """Return pairs of runs. A seed's load changes both, and the second is better by ``effect``."""
    random = np.random.default_rng(seeds)
    for _ in range(samples):
        common = random.normal(20, load, size=seeds)
        noises = random.normal(0, noise, size=(2, seeds))
        yield (common + noises[0]).tolist(), (common + noises[1] - effect).tolist()


def test_paired_intervals_are_narrower_than_those_of_two_means_with_common_seeds():
    paired, apart = [], []
    for first, second in side_by_side(200, 5, 1.0):
        found = difference(values(*first), values(*second))
        paired.append(found.high - found.low)
        ends = [t_interval(side) for side in (first, second)]
        apart.append(max(high - low for _, low, high in ends))
    # Paired, there are two noise terms of variance 1. Unpaired, there is a load of variance 25,
    # too.
    assert np.mean(paired) / np.mean(apart) == pytest.approx((2 / 26) ** 0.5, rel=0.15)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_without_an_effect_a_difference_is_found_in_5_of_100_cases(seeds):
    called = [
        decided(first, second) is not INCONCLUSIVE for first, second in side_by_side(1500, seeds, 0)
    ]
    assert np.mean(called) == pytest.approx(0.05, abs=0.015)


def test_a_planted_difference_is_found_and_never_reversed():
    decisions = [decided(*pair) for pair in side_by_side(500, 10, 3.0)]
    assert decisions.count(BETTER) >= 495
    assert decisions.count(WORSE) == 0


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 10), (0.5, 34), (2.0, 5), (4.0, 3)])
def test_needed_seeds_equal_published_sample_sizes(effect, seeds):
    # tabulated sample sizes of a paired t test (5%, 80% power): 10, 34, and 5 at 2 deviations
    assert seeds_needed(effect, 1.0) == pytest.approx(seeds, abs=1)


@pytest.mark.parametrize("effect", [0.6, 1.0, 1.8])
def test_the_needed_seeds_decide_in_4_of_5_cases(effect):
    seeds = seeds_needed(effect, 2**0.5)  # standard deviation of the difference of two noise terms
    told = [decided(*pair) is BETTER for pair in side_by_side(600, seeds, effect)]
    assert np.mean(told) == pytest.approx(0.8, abs=0.05)


def test_some_differences_need_too_many_seeds():
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.001, 1.0) is None
    assert seeds_needed(0.1, 1.0) < MOST_SEEDS
    found = difference(values(1, 2, 3), values(1.5, 2.5, 2.9))
    assert found.decision(Better.LESS) is INCONCLUSIVE
    assert found.more_seeds() == seeds_needed(found.mean, found.deviation) - 3


@given(st.lists(st.tuples(SHARES, SHARES), min_size=2, max_size=5))
def test_shares_differ_by_at_most_the_whole(pairs):
    sides = ([Value(share) for share in side] for side in zip(*pairs, strict=True))
    found = difference(*sides, most=1.0)
    assert -1 <= found.low <= found.mean <= found.high <= 1
