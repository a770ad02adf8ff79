"""Test lengths drawn from clipped lognormal distributions."""

import random
from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.workloads.programs.base import check_mean, sample_gap, sample_input, sample_length


@pytest.mark.parametrize(
    ("mean", "sigma", "high"), [(142, 0.8, 512), (56, 0.9, 448), (15, 0.57, 32), (400, 2.0, 512)]
)
def test_clipping_does_not_change_the_mean(mean, sigma, high):
    rng = random.Random(1)
    drawn = [sample_length(rng, mean, sigma, high) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.02)
    assert min(drawn) >= 1
    assert max(drawn) <= high


@given(
    st.floats(1, 500), st.floats(0, 3), st.floats(1.001, 100), st.integers(0, 1000)
)  # fmt: skip
def test_lengths_stay_within_their_limits(mean, sigma, factor, seed):
    high = mean * factor
    length = sample_length(random.Random(seed), mean, sigma, high)
    assert 1 <= length <= max(round(mean), round(high))


def test_a_sigma_of_zero_gives_a_constant():
    assert {sample_input(random.Random(seed), 40.0, 0.0) for seed in range(9)} == {40}


def test_input_is_at_most_eight_times_its_mean():
    rng = random.Random(0)
    assert max(sample_input(rng, 10.0, 2.0) for _ in range(2000)) == 80


def test_a_mean_gap_of_zero_gives_zero():
    assert sample_gap(random.Random(0), 0.0) == 0.0


def test_gaps_have_their_mean():
    rng = random.Random(0)
    assert fmean(sample_gap(rng, 4.0) for _ in range(20_000)) == pytest.approx(4.0, rel=0.03)


def lengths(mean, sigma):
    return SimpleNamespace(answer_tokens=mean, answer_sigma=sigma, max_new_tokens=32)


def test_the_mean_must_lie_below_the_limit():
    check_mean(lengths(32, 0.0), "answer")
    check_mean(lengths(31, 0.5), "answer")
    with pytest.raises(ValueError, match="answer_tokens = 32: must be below max_new_tokens = 32"):
        check_mean(lengths(32, 0.5), "answer")
    with pytest.raises(ValueError, match="answer_tokens = 33"):
        check_mean(lengths(33, 0.0), "answer")
