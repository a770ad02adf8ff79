"""Test intervals of means, and the summary of several runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Better, Form, Of
from fairbench.report.run_table import repeat_lines, show
from fairbench.results.significance import METHOD, combine_summaries, t_interval

SHARES = (Form.PERCENT, Form.WHOLE_PERCENT, Form.INDEX)


def is_share(metric):
    """Return whether a metric is a share of a whole. A client's share of its due may exceed 1."""
    return metric.form in SHARES and metric.of is Of.RUN and metric.better is not Better.NEITHER


def summary(seed, **values):
    """Return a summary with the keys that ``combine`` and ``repeat_lines`` need, and more."""
    shown = dict.fromkeys(
        (
            "service_rate_tok_s",
            "actual_service_tok_s",
            "output_rate_tok_s",
            "cache_hit_rate",
            "jain_index",
            "jain_index_actual",
            "jain_index_maxmin",
            "jain_index_entitlement",
            "min_entitlement_ratio",
            "max_service_gap",
            "service_gap_bound",
            "victim_p50_s",
            "victim_p99_s",
        ),
        1.0,
    )
    fixed = {
        "simulated": True,
        "timing_profile": "gpu/model/tp1/x",
        "timing_error_pct": 0.0,
        "scheduler": "vtc",
    }
    place = {"workload": "tot", "scenario": "s1", "dp": 2, "seed": seed, "complete": True}
    client = {"client": "client-0", "misbehaving": True, "service_rate_tok_s": 10.0 * seed}
    rest = {"clients": [client], "notes": {}, "censored": []}
    return {**fixed, **place, **shown, **rest, **values}


def coverage(draw, size, samples=3000, truth=0.0):
    """Return how often the interval of ``size`` values contains the mean of their distribution."""
    random = np.random.default_rng(size)
    rows = (t_interval(draw(random, size).tolist()) for _ in range(samples))
    return sum(low <= truth <= high for _, low, high in rows) / samples


@pytest.mark.parametrize("size", [2, 3, 5, 10])
def test_an_interval_covers_the_mean_of_normal_values_in_95_of_100_cases(size):
    assert coverage(lambda random, n: random.normal(size=n), size) == pytest.approx(0.95, abs=0.015)


def exponential(random, n):
    return random.exponential(size=n)


def test_an_interval_covers_the_mean_of_skewed_values_as_rarely_as_documented():
    found = [coverage(exponential, n, truth=1.0) for n in (3, 5, 10)]
    assert found == pytest.approx([0.885, 0.883, 0.901], abs=0.015)


def test_intervals_of_differences_of_skewed_values_cover_the_mean():
    def pairs(random, n):
        return exponential(random, n) - exponential(random, n)

    assert min(coverage(pairs, n) for n in (3, 5, 10)) >= 0.94


def test_intervals_equal_hand_computed_values():
    # The mean is 4 and the deviation 2, so the half width is 2 / sqrt(3) times t(0.975, 2) =
    # 4.30265.
    half = 4.30265 * 2 / 3**0.5
    assert t_interval([2, 4, 6]) == pytest.approx((4, 4 - half, 4 + half), abs=1e-4)
    assert t_interval([0.0, 1.0])[1:] == pytest.approx((-5.8531, 6.8531), abs=1e-4)
    assert t_interval([7.0] * 5) == (7, 7, 7)
    assert t_interval([0.0, 1.0], least=0.0, most=1.0) == (0.5, 0.0, 1.0)


def test_one_value_has_no_interval_and_no_value_has_no_mean():
    assert t_interval([3.0]) == (3.0, None, None)
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.floats(0.1, 10))
def test_the_interval_contains_the_mean_and_scales_with_the_values(values, factor):
    average, low, high = t_interval(values)
    assert low <= average <= high
    scaled = t_interval([factor * value for value in values])
    expected = [factor * end for end in (average, low, high)]
    assert scaled == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_runs_are_combined_key_by_key():
    runs = [
        summary(1, jain_index=0.5, max_service_gap=None, censored=["victim_p99_s"]),
        summary(2, jain_index=0.7, max_service_gap=8.0),
    ]
    combined = combine_summaries(runs)
    assert combined["seeds"] == [1, 2]
    assert combined["jain_index"]["mean"] == pytest.approx(0.6)
    assert combined["max_service_gap"] == {"mean": 8.0, "low": None, "high": None, "runs": 1}
    assert combined["jain_index"]["high"] == 1.0  # an index is at most 1
    assert combined["victim_p99_s"]["lower_bound"] is True
    assert "lower_bound" not in combined["victim_p50_s"]
    assert combined["scheduler"] == "vtc"
    assert combined["dp"] == 2
    assert combined["clients"][0]["service_rate_tok_s"]["mean"] == 15.0
    assert combined["clients"][0]["misbehaving"] is True
    lines = list(repeat_lines(combined))
    assert max(map(len, lines)) <= 100
    assert any(METHOD in line for line in lines)
    assert any(line.startswith("  well-behaved P99") for line in lines)
    assert not any(line.startswith("  well-behaved P95") for line in lines)
    assert any(line.endswith(" 8 (1 of 2 runs)") for line in lines)
    assert any(line.endswith(" 0.600 [0.000, 1.000]") for line in lines)


def test_a_metric_that_no_run_defines_is_null_and_a_dash():
    combined = combine_summaries(
        [summary(1, max_service_gap=None), summary(2, max_service_gap=None)]
    )
    assert combined["max_service_gap"] is None
    assert show(None, 1) == "-"


def test_an_incomplete_run_makes_the_combination_incomplete():
    assert not combine_summaries([summary(1), summary(2, complete=False)])["complete"]


def test_a_mean_of_lower_bounds_is_not_rounded_up():
    interval = {"mean": 1656.7, "low": 1656.7, "high": 1656.7, "runs": 1}
    assert show(interval, 0) == "1,657 [1,657, 1,657]"
    assert show(interval | {"lower_bound": True}, 0).startswith("> 1,656 [")
    assert show(interval | {"mean": 2.31, "upper_bound": True}, 1).startswith("< 2.4 [")


@pytest.mark.parametrize("key", [key for key, one in CATALOGUE.items() if is_share(one)])
@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_the_interval_of_a_share_stays_within_0_and_100_percent(key, values):
    found = combine_summaries([summary(seed, **{key: value}) for seed, value in enumerate(values)])[
        key
    ]
    assert 0 <= found["low"] <= found["mean"] <= found["high"] <= 1
