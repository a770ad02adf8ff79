"""Test arrivals with Gamma-distributed gaps: rate, burstiness, schedule, streams."""

from itertools import islice, pairwise
from math import inf, sqrt
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.streams import stream
from fairbench.workloads.traffic.arrivals import GammaArrivals, Rate, arrival_times, gamma_gaps


def take(count, rates, burstiness=1.0, seed=0):
    return list(islice(arrival_times(gamma_gaps(stream(seed, "test"), burstiness), rates), count))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.09, 20.0])
def test_mean_and_variation_of_gaps(burstiness, rate):
    times = [0.0, *take(20_000, (Rate(0.0, rate),), burstiness)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert fmean(gaps) == pytest.approx(1 / rate, rel=0.04)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1 / sqrt(burstiness), rel=0.05)


def test_an_infinite_rate_sends_all_programs_together():
    assert take(5, (Rate(0.0, inf),)) == [0.0] * 5


def test_a_schedule_changes_the_rate_at_its_times():
    times = take(12_000, (Rate(0.0, 40.0), Rate(100.0, 10.0)))
    flood = sum(t < 100 for t in times)
    calm = sum(100 <= t < 500 for t in times)
    assert flood == pytest.approx(4000, rel=0.06)
    assert calm == pytest.approx(4000, rel=0.06)


def test_a_gap_across_a_change_equals_a_hand_computation():
    # A gap of 6 units from t = 0: 2 s at rate 2 use 4 of them, and the other 2 take 4 s at rate
    # 0.5.
    class Six:
        def gammavariate(self, alpha, beta):
            assert (alpha, beta) == (3.0, 1 / 3.0)
            return 6.0

    assert next(arrival_times(gamma_gaps(Six(), 3.0), (Rate(0.0, 2.0), Rate(2.0, 0.5)))) == 6.0


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=4), st.floats(0.1, 10), st.integers(0, 99)
)
def test_times_never_decrease_and_equal_rates_need_no_pieces(rates, burstiness, seed):
    pieces = tuple(Rate(3.0 * i, rate) for i, rate in enumerate(rates))
    times = take(50, pieces, burstiness, seed)
    assert times == sorted(times)
    same = tuple(Rate(3.0 * i, rates[0]) for i in range(4))
    assert take(50, same, burstiness, seed) == pytest.approx(take(50, same[:1], burstiness, seed))


@given(st.floats(0.1, 10), st.integers(1, 30) | st.none(), st.floats(0.5, 20), st.integers(0, 99))
def test_arrivals_end_at_their_end(rate, count, until_s, seed):
    source = GammaArrivals((Rate(0.0, rate),), num_programs=count, until_s=until_s)
    times = [at_s for at_s, _ in source.arrivals(stream(seed, "test"))]
    assert all(at_s < until_s for at_s in times)
    assert count is None or len(times) <= count
    assert source.last_arrival_s(stream(seed, "test")) == max(times, default=0.0)
    assert not source.timed


def test_infinite_burstiness_gives_even_gaps_with_any_seed():
    for seed in range(3):
        assert take(4, (Rate(0.0, 0.5),), inf, seed) == [2.0, 4.0, 6.0, 8.0]
