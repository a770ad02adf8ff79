"""Bootstrap intervals and the summary of several runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.report.interval_lines import repeat_lines, show
from fairbench.results.intervals import bootstrap, combine


def summary(seed, **values):
    """The few keys that combine and repeat_lines need, with room for more."""
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


def test_the_interval_of_two_values_is_known():
    # Resampled means of {0, 1} are 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
    assert bootstrap([0.0, 1.0]) == (0.0, 1.0)


def test_the_interval_of_many_values_is_that_of_the_normal_law():
    values = np.random.default_rng(1).normal(10, 2, size=400)
    low, high = bootstrap(list(values))
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_the_interval_lies_within_the_values_and_is_the_same_again(values):
    low, high = bootstrap(values)
    slack = 1e-9 * max(map(abs, values))
    assert min(values) - slack <= low <= high <= max(values) + slack
    assert bootstrap(values) == (low, high)


def test_no_value_has_no_interval():
    with pytest.raises(ValueError, match="no values"):
        bootstrap([])


def test_runs_are_combined_key_by_key():
    runs = [
        summary(1, jain_index=0.5, max_service_gap=None, censored=["victim_p99_s"]),
        summary(2, jain_index=0.7, max_service_gap=8.0),
    ]
    combined = combine(runs)
    assert combined["seeds"] == [1, 2]
    assert combined["jain_index"]["mean"] == pytest.approx(0.6)
    assert combined["max_service_gap"] == {"mean": 8.0, "low": 8.0, "high": 8.0, "runs": 1}
    assert combined["victim_p99_s"]["lower_bound"] is True
    assert "lower_bound" not in combined["victim_p50_s"]
    assert combined["scheduler"] == "vtc"
    assert combined["dp"] == 2
    assert combined["clients"][0]["service_rate_tok_s"]["mean"] == 15.0
    assert combined["clients"][0]["misbehaving"] is True
    lines = list(repeat_lines(combined))
    assert max(map(len, lines)) <= 100
    assert any("8 [8, 8] (1 of 2 runs)" in line for line in lines)


def test_a_metric_no_run_defines_is_null_and_a_dash():
    combined = combine([summary(1, max_service_gap=None), summary(2, max_service_gap=None)])
    assert combined["max_service_gap"] is None
    assert show(None, 1) == "-"


def test_an_incomplete_run_makes_the_whole_incomplete():
    assert not combine([summary(1), summary(2, complete=False)])["complete"]


def test_a_mean_of_lower_bounds_is_not_rounded_up():
    interval = {"mean": 1656.7, "low": 1656.7, "high": 1656.7, "runs": 1}
    assert show(interval, 0) == "1,657 [1,657, 1,657]"
    assert show(interval | {"lower_bound": True}, 0).startswith("> 1,656 [")
    assert show(interval | {"mean": 2.31, "upper_bound": True}, 1).startswith("< 2.4 [")
