"""Test iteration times against the documented formula and the shared evaluator."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.hardware.catalogue import load_profile, profile_ids
from tests.shared_data import PROFILES, needs

profiles = st.sampled_from(profile_ids()).map(load_profile)
chunks = st.tuples(st.integers(0, 100_000), st.integers(1, 16_384))
QUANTUM_PS = 1  # the effect of rounding to whole picoseconds, for each rounded coefficient


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
    return c["c0"] + linear + attention + rest + profile.host_ms


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
            expected_ps = expected_ms * 1e9
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
    """A step reads every weight once, and a token takes two operations a weight (data sheets)."""
    profile, ps = load_profile(name), 1e12
    reading_s = profile.pool.weights_gib * 2**30 / (tb_s * 1e12)
    assert reading_s < profile.decode_ps(1, 100) / ps < 2 * reading_s
    computing_s = 8192 * 2 * 70.55e9 / 4 / (tflops * 1e12)
    assert computing_s < profile.prefill_ps([(0, 8192)]) / ps < 2 * computing_s
