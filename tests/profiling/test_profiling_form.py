"""Test that the fit finds a profile's coefficients from times with and without noise."""

import numpy as np
import pytest

from fairbench.hardware.catalogue import load_profile
from fairbench_calibration.profiling.fit import Iterations, drawn, errors_pct, fitted, predicted_ms

DENSE = "h100-80gb/qwen3-14b/tp1/vllm-0.24.0"
EXPERTS = "h100-80gb/mixtral-8x7b/tp2/sglang-0.5.14"


def iterations(count=400, seed=1):
    return drawn(count, np.random.default_rng(seed))


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_the_form_is_that_of_a_timing_profile(name):
    profile = load_profile(name)
    it = iterations(60)
    for row, ms in enumerate(predicted_ms(profile.coefficients_ms, it)):
        n, new, prefix, decodes, context = (int(column[row]) for column in it)
        step = profile.step_ps([(prefix, new)] * n, decodes, decodes * context)
        assert ms + profile.host_ms == pytest.approx(step / 1e9, rel=1e-5)


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_exact_times_are_fitted_exactly(name):
    true = dict(load_profile(name).coefficients_ms)
    true.pop("c_l", None)  # the fit does not include the least time of a prefill
    it, left = iterations(), true.get("q_e", 0.0)
    found = fitted(it, predicted_ms(true, it), experts_left=left)
    assert found.keys() == true.keys()
    assert (
        errors_pct(found, iterations(200, seed=2), predicted_ms(true, iterations(200, 2)))["max"]
        < 1
    )


def test_noise_and_outliers_change_the_fit_little():
    true, it = load_profile(DENSE).coefficients_ms, iterations()
    rng = np.random.default_rng(3)
    noisy = predicted_ms(true, it) * np.exp(rng.normal(0, 0.03, 400))
    noisy[::20] *= 3
    fresh = iterations(200, seed=4)
    assert errors_pct(fitted(it, noisy), fresh, predicted_ms(true, fresh))["MAPE"] < 2


def test_without_experts_the_form_misses_small_batches():
    true = load_profile(EXPERTS).coefficients_ms
    it = iterations()
    dense = fitted(it, predicted_ms(true, it))
    lone = Iterations(*(np.array([value]) for value in (0.0, 0.0, 0.0, 1.0, 500.0)))
    assert predicted_ms(dense, lone)[0] > 1.8 * predicted_ms(true, lone)[0]


def test_a_delay_is_separated_from_the_iterations():
    true, it = load_profile(DENSE).coefficients_ms, iterations()
    waits = (it.decodes == 0).astype(float)
    times = predicted_ms(true, it) + 12.0 * waits
    found = fitted(it, times, waits=waits)
    assert found["delay_ms"] == pytest.approx(12.0, rel=0.1)


def test_errors_have_a_size_and_only_the_bias_has_a_sign():
    # Every prediction is 10 ms, so the errors are -50%, -20% and 25%.
    constant = dict.fromkeys(load_profile(DENSE).coefficients_ms, 0.0) | {"c0": 10.0, "p": 1.0}
    found = errors_pct(constant, iterations(3), np.array([20.0, 12.5, 8.0]))
    # The 95th percentile of 20, 25 and 50 is nine tenths of the way from 25 to 50.
    assert found == {"MAPE": 31.67, "P50": 25.0, "P95": 47.5, "max": 50.0, "bias": -15.0}


def test_drawn_iterations_keep_to_their_limits():
    it = drawn(500, np.random.default_rng(0), most_context=10_000)
    assert (it.decodes * it.context <= 10_000).all()
    assert it.tokens.min() >= 1
    kinds = [(it.prefills > 0) & (it.decodes == 0), it.prefills == 0, it.prefills * it.decodes > 0]
    assert all(120 < kind.sum() < 220 for kind in kinds)
