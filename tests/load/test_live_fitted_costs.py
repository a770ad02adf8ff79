"""Test that costs are fitted to a server's own iterations."""

import pytest

from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench_engines.step_times import FEW, FittedCosts

PROFILE = "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"


def test_without_enough_observations_nothing_is_claimed():
    costs = FittedCosts()
    for _ in range(FEW - 1):
        costs.observe_decode(1, 100, 0.01)
    assert costs.decode_step_s(1, 100) == 0
    costs.observe_decode(1, 100, 0.01)
    assert costs.decode_step_s(1, 100) == pytest.approx(0.01)
    assert costs.prefill_s(0, 100) == 0


def test_a_linear_server_is_found_exactly():
    costs = FittedCosts()
    for requests in (1, 4, 16, 64):
        for context in (100, 900, 5000):
            seconds = 0.008 + 0.0001 * requests + 2e-7 * requests * context
            costs.observe_decode(requests, requests * context, seconds)
            costs.observe_prefill([(context, requests)] * 2, 0.005 + 4e-5 * 2 * requests)
    assert costs.decode_step_s(10, 10_000) == pytest.approx(0.008 + 0.001 + 0.002, rel=1e-3)
    assert costs.prefill_s(300, 50) == pytest.approx(0.005 + 4e-5 * 50, rel=1e-3)


def test_a_simulated_gpu_is_fitted_approximately():
    """The GPU's iterations follow a roofline, not a line. The fit is within a tenth overall."""
    truth, fitted = ProfileCosts(load_profile(PROFILE)), FittedCosts()
    steps = [(n, n * context) for n in (1, 4, 16, 64, 128) for context in (200, 1000, 4000)]
    prompts = [(cached, new) for cached in (0, 500, 4000, 16000) for new in (512, 2048, 8192)]
    for _ in range(3):
        for requests, context in steps:
            fitted.observe_decode(requests, context, truth.decode_step_s(requests, context))
        for cached, new in prompts:
            fitted.observe_prefill([(cached, new)], truth.prefill_s(cached, new))
    errors = [abs(fitted.decode_step_s(*one) / truth.decode_step_s(*one) - 1) for one in steps]
    errors += [abs(fitted.prefill_s(*one) / truth.prefill_s(*one) - 1) for one in prompts]
    assert sum(errors) / len(errors) < 0.1


@pytest.mark.parametrize("token_s", [0.0, 1e-5, 3e-4])
def test_the_time_to_load_a_token_from_the_host_is_found(token_s):
    costs = FittedCosts()
    assert costs.load_s(500) == 0
    for new in (10, 40, 160):
        for loaded in (0, 0, 200, 3000):
            seconds = 0.005 + 4e-5 * new + token_s * loaded
            costs.observe_prefill([(loaded, new)], seconds, loaded)
    assert costs.load_s(500) == pytest.approx(500 * token_s, abs=1e-6)
    assert costs.prefill_s(0, 100) == pytest.approx(0.005 + 4e-5 * 100, rel=1e-2)
