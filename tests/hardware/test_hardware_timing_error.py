"""Test ``--timing-error``: one draw per run, within its limits, and nothing else changes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.hardware.catalogue import resolve_profile
from fairbench.hardware.timing import perturbed
from fairbench.sim.run import simulate

PROFILE = resolve_profile("a100", "llama-3.1-8b")


@given(st.floats(0, 50), st.integers(0, 1000))
def test_each_coefficient_stays_within_the_error(percent, seed):
    off = perturbed(PROFILE, percent, random.Random(seed))
    low, high = (1 - percent / 100) ** 2, (1 + percent / 100) ** 2
    for name, value in PROFILE.coefficients_ms.items():
        ratio = off.coefficients_ms[name] / value if value else 1
        assert ratio == 1 if name == "p" else low - 1e-9 <= ratio <= high + 1e-9


def test_all_coefficients_share_a_bias_and_differ_otherwise():
    ratios = []
    for seed in range(300):
        off = perturbed(PROFILE, 10, random.Random(seed)).coefficients_ms
        ratios.append([off[name] / PROFILE.coefficients_ms[name] for name in ("c0", "c_K")])
    mean = [sum(column) / len(ratios) for column in zip(*ratios, strict=True)]
    assert mean == pytest.approx([1, 1], abs=0.02)
    covariance = sum((a - mean[0]) * (b - mean[1]) for a, b in ratios) / len(ratios)
    variance = sum((a - mean[0]) ** 2 for a, _ in ratios) / len(ratios)
    # Both factors are uniform, so half of the variance is the common bias.
    assert covariance / variance == pytest.approx(0.5, abs=0.12)


def test_a_run_draws_once_from_its_seed():
    flags = {"workload": "chat", "scenario": "none", "num_programs": 2, "seed": 3}
    plain = simulate(resolve(flags)).summary
    off = simulate(resolve(flags, {"timing.error_pct": 20.0})).summary
    again = simulate(resolve(flags, {"timing.error_pct": 20.0})).summary
    assert off == again
    assert off["duration"] != plain["duration"]
    assert off["total_output_tokens"] == plain["total_output_tokens"]
    assert off["timing_error_pct"] == 20.0
