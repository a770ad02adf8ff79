"""Test iteration times against the documented formula and the shared evaluator."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import slowed
from tests.shared_data import PROFILES, needs

profiles = st.sampled_from(profile_ids()).map(load_profile)
chunks = st.tuples(st.integers(0, 100_000), st.integers(1, 16_384))
TRITON = "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"
QUANTUM_PS = 1  # the effect of rounding to whole picoseconds, per rounded coefficient


def plain_ms(profile, prefills, contexts):
    """Compute the time by the formula in the docstring of TimingProfile."""
    c, n, k = profile.coefficients_ms, len(contexts), sum(contexts)
    tokens = sum(new for _, new in prefills) + n
    attention = sum(
        max(c["c_A"] * new * (prefix + (new + 1) / 2), c["c_K"] * prefix)
        for prefix, new in prefills
    )
    weights = c["c_w"] + c.get("c_e", 0) * (1 - c.get("q_e", 1) ** tokens)
    linear = (weights ** c["p"] + (c["c_T"] * tokens) ** c["p"]) ** (1 / c["p"])
    rest = c["c_npf"] * len(prefills) + c["c_K"] * k + c["c_nd"] * n
    rest += c.get("c_pf", 0) if prefills else 0
    return max(c["c0"] + linear + attention + rest + profile.host_ms, least_ms(c, prefills))


def least_ms(c, prefills):
    """Return the time to launch the kernels of an iteration that prefills."""
    return c.get("c_l", 0) + c.get("c_lp", 0) * len(prefills) if prefills else 0


@given(profiles, st.lists(chunks, min_size=1, max_size=5))
def test_a_prefill_takes_the_time_of_the_formula(profile, prefills):
    expected_ps = plain_ms(profile, prefills, []) * 1e9
    assert profile.prefill_ps(prefills) == pytest.approx(expected_ps, rel=1e-9)


@given(profiles, st.lists(st.integers(1, 30_000), min_size=1, max_size=40))
def test_a_decode_step_takes_the_time_of_the_formula(profile, contexts):
    expected_ps = plain_ms(profile, [], contexts) * 1e9
    rounding_ps = QUANTUM_PS * (1 + sum(contexts))
    assert abs(profile.decode_ps(len(contexts), sum(contexts)) - expected_ps) <= rounding_ps


@given(profiles, st.integers(1, 500), st.integers(0, 10**6), st.integers(1, 500))
def test_decode_time_is_exactly_linear_in_context(profile, size, context, more):
    longer = profile.decode_ps(size, context + more) - profile.decode_ps(size, context)
    assert longer == more * profile.context_ps > 0


@given(profiles, st.sampled_from([0.5, 2.0, 4.0]), st.lists(chunks, max_size=4))
def test_every_time_of_a_slower_gpu_is_longer_by_the_factor(profile, factor, prefills):
    slow = slowed(profile, factor)
    for before, after in (
        (profile.step_ps(prefills, 8, 5_000), slow.step_ps(prefills, 8, 5_000)),
        (profile.pool.host_token_ps, slow.pool.host_token_ps),
        (profile.frontend.request_ms * 1e9, slow.frontend.request_ms * 1e9),
    ):
        assert after == pytest.approx(factor * before, rel=1e-6, abs=2 * 5_000)
    assert slow.pool.tokens(0.8) == profile.pool.tokens(0.8)


@needs(PROFILES)
def test_the_reference_evaluator_agrees():
    spec = importlib.util.spec_from_file_location("timing_ref", PROFILES / "timing_ref.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for name in profile_ids():
        profile = load_profile(name)
        if "c_e" in profile.coefficients_ms:  # the reference lacks this term
            continue
        c, host = profile.coefficients_ms, profile.host_ms
        for prefills in ([(0, 2048)], [(20_000, 500)], [(0, 1), (512, 300)]):
            expected_ms = reference.iteration_ms(c, prefills, [], host) + c.get("c_pf", 0)
            expected_ps = max(expected_ms, least_ms(c, prefills)) * 1e9
            assert profile.prefill_ps(prefills) == pytest.approx(expected_ps, rel=1e-9)
        contexts = [1024] * 64
        expected_ps = reference.iteration_ms(c, [], contexts, host) * 1e9
        rounding_ps = QUANTUM_PS * (1 + sum(contexts))
        assert abs(profile.decode_ps(64, sum(contexts)) - expected_ps) <= rounding_ps


@pytest.mark.parametrize(
    ("name", "tb_s", "tflops"),
    [
        ("a100-80gb/llama-3.1-70b/tp4/sglang-0.5.10", 2.039, 312),
        ("h100-80gb/llama-3.1-70b/tp4/sglang-0.5.14", 3.352, 989),
    ],
)
def test_no_step_of_a_large_model_is_faster_than_its_gpus(name, tb_s, tflops):
    """A step reads every weight once, and a token takes two operations per weight (data sheets)."""
    profile, ps = load_profile(name), 1e12
    reading_s = profile.pool.weights_gib * 2**30 / (tb_s * 1e12)
    assert reading_s < profile.decode_ps(1, 100) / ps < 2 * reading_s
    computing_s = 8192 * 2 * 70.55e9 / 4 / (tflops * 1e12)
    assert computing_s < profile.prefill_ps([(0, 8192)]) / ps < 2 * computing_s


def test_a_short_prefill_takes_the_time_of_its_launch():
    profile = load_profile(TRITON)
    c = profile.coefficients_ms
    for cached, new in ((511, 1), (0, 100)):
        for prompts in (1, 2, 4):
            launch_ms = c["c_l"] + c["c_lp"] * prompts
            assert profile.prefill_ps([(cached, new)] * prompts) == pytest.approx(launch_ms * 1e9)
    long_ps = profile.prefill_ps([(0, 4_096)])
    assert long_ps > 2 * (c["c_l"] + c["c_lp"]) * 1e9
    assert profile.step_ps([], 1, 1) < c["c_l"] * 1e9  # decoding is launched as one graph


def test_one_long_context_costs_its_own_time_and_many_cost_their_sum():
    profile = load_profile(TRITON)
    tail_ms, read_ms = profile.coefficients_ms["c_tail"], profile.coefficients_ms["c_K"]
    assert profile.tail_ps([10_000]) == pytest.approx(10_000 * (tail_ms - read_ms) * 1e9)
    together = [10_000, 1_000, 1_000]
    assert profile.tail_ps(together) == pytest.approx((10_000 * tail_ms - 12_000 * read_ms) * 1e9)
    assert profile.tail_ps([4_000] * 32) == 0
    assert profile.tail_ps([]) == 0
    assert load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang").tail_ps([10_000]) == 0
