"""Iteration times and KV pools against the documented formulas and the shared numbers."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.hardware.timing import load_profile, model_names, profile_ids, resolve_profile

SHARED = Path(__file__).resolve().parents[3] / "shared" / "profiles"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared/profiles is not here")

profiles = st.sampled_from(profile_ids()).map(load_profile)
chunks = st.tuples(st.integers(0, 100_000), st.integers(1, 16_384))
QUANTUM_PS = 1  # what rounding to whole picoseconds may cost, per rounded coefficient


def plain_ms(profile, prefills, contexts):
    """The formula of TimingProfile, read off its docstring."""
    c, n, k = profile.coefficients_ms, len(contexts), sum(contexts)
    tokens = sum(new for _, new in prefills) + n
    attention = sum(
        max(c["c_A"] * new * (prefix + (new + 1) / 2), c["c_K"] * prefix)
        for prefix, new in prefills
    )
    linear = (c["c_w"] ** c["p"] + (c["c_T"] * tokens) ** c["p"]) ** (1 / c["p"])
    rest = c["c_npf"] * len(prefills) + c["c_K"] * k + c["c_nd"] * n
    return c["c0"] + linear + attention + rest + profile.host_ms


@given(profiles, st.lists(chunks, min_size=1, max_size=5))
def test_a_prefill_takes_what_the_formula_says(profile, prefills):
    expected_ps = plain_ms(profile, prefills, []) * 1e9
    assert profile.prefill_ps(prefills) == pytest.approx(expected_ps, rel=1e-9)


@given(profiles, st.lists(st.integers(1, 30_000), min_size=1, max_size=40))
def test_a_decode_step_takes_what_the_formula_says(profile, contexts):
    expected_ps = plain_ms(profile, [], contexts) * 1e9
    rounding_ps = QUANTUM_PS * (1 + sum(contexts))
    assert abs(profile.decode_ps(len(contexts), sum(contexts)) - expected_ps) <= rounding_ps


@given(profiles, st.integers(1, 500), st.integers(0, 10**6), st.integers(1, 500))
def test_decode_time_is_exactly_linear_in_context(profile, size, context, more):
    longer = profile.decode_ps(size, context + more) - profile.decode_ps(size, context)
    assert longer == more * profile.context_ps > 0


@needs_shared
def test_the_reference_evaluator_agrees():
    spec = importlib.util.spec_from_file_location("timing_ref", SHARED / "timing_ref.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for name in profile_ids():
        profile = load_profile(name)
        c, host = profile.coefficients_ms, profile.host_ms
        for prefills in ([(0, 2048)], [(20_000, 500)], [(0, 1), (512, 300)]):
            expected_ps = reference.iteration_ms(c, prefills, [], host) * 1e9
            assert profile.prefill_ps(prefills) == pytest.approx(expected_ps, rel=1e-9)
        contexts = [1024] * 64
        expected_ps = reference.iteration_ms(c, [], contexts, host) * 1e9
        rounding_ps = QUANTUM_PS * (1 + sum(contexts))
        assert abs(profile.decode_ps(64, sum(contexts)) - expected_ps) <= rounding_ps


@needs_shared
def test_the_bundled_coefficients_are_the_shared_ones():
    text = (SHARED / "engine_profiles.json").read_text(encoding="utf-8")
    shared = {key.lower(): value for key, value in json.loads(text)["profiles"].items()}
    ours = "a10g-24gb/llama-2-7b/tp1/slora-fitted"  # fitted here, see fairbench validate
    assert sorted([*shared, ours]) == profile_ids()
    for name, entry in shared.items():
        profile = load_profile(name)
        assert profile.coefficients_ms == entry["coefficients_ms"]
        assert profile.host_ms == entry["host_ms_default"]
        assert profile.grade == entry["grade"]


@needs_shared
def test_the_bundled_pools_are_the_shared_ones():
    data = json.loads((SHARED / "kv_pools.json").read_text(encoding="utf-8"))
    pools = {key.lower(): value for key, value in data["pools"].items()}
    for name in (name for name in profile_ids() if "/tp1/" in name):
        gpu, model, _, _ = name.split("/")
        mine, theirs = load_profile(name).pool, pools[f"{gpu}/{model}"]
        for field in ("pre_load_avail_gib", "weights_gib", "kv_bytes_per_token"):
            assert getattr(mine, field) == theirs[field]
        assert mine.tokens(0.88) == theirs["pool_tokens_0_88"]
        fraction = theirs["mem_fraction_static_0_5_23"]
        assert mine.tokens(fraction) == theirs["pool_tokens_0_5_23"]
        is_a10g = gpu.startswith("a10g")  # as in the papers' time, and smaller chunks
        assert mine.mem_fraction_static == (0.88 if is_a10g else fraction)
        assert mine.chunked_prefill_size == (2048 if is_a10g else theirs["chunked_prefill_size"])


def test_default_pools():
    a100 = resolve_profile("a100", "llama-3.1-8b").pool
    assert a100.tokens(a100.mem_fraction_static) == 412_745
    a10g = resolve_profile("a10g", "llama-3.2-3b").pool
    assert a10g.tokens(a10g.mem_fraction_static) == 124_892


def test_the_pool_formula_by_hand():
    pool = resolve_profile("a100", "llama-3.1-8b").pool
    # (78.8 * 0.83 - 15.02) GiB at 2 * 2 bytes * 32 layers * 8 heads * 128 a token.
    assert pool.tokens(0.83) == int((78.8 * 0.83 - 15.02) * 2**30 / (2 * 2 * 32 * 8 * 128))


def test_the_pool_that_a_public_log_shows():
    """78.81 GB before and 63.72 GB after the weights: 444,500 logged, 444,520 by the formula."""
    pool = resolve_profile("a100", "llama-3.1-8b").pool
    logged = type(pool)(78.81, 78.81 - 63.72, pool.kv_bytes_per_token, 0.88, 8192)
    assert logged.tokens(0.88) == 444_520


def test_no_room_for_kv_is_a_usage_error():
    pool = resolve_profile("a10g", "llama-3.1-8b").pool
    with pytest.raises(UsageError, match=r"^mem_fraction_static 0\.5: no memory is left"):
        pool.tokens(0.5)


def test_tensor_parallelism_divides_weights_and_kv():
    one = load_profile("h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14").pool
    four = load_profile("h100-80gb/llama-3.1-8b/tp4/sglang-0.5.14").pool
    assert four.weights_gib == one.weights_gib / 4
    assert four.kv_bytes_per_token == one.kv_bytes_per_token / 4


@pytest.mark.parametrize(
    ("gpu", "model", "chosen"),
    [
        ("a100", "llama-3.1-8b", "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"),
        ("A100", "llama-3.2-3b", "a100-80gb/llama-3.2-3b/tp1/sglang-0.5.10"),
        ("h1", "llama-3.1-8b", "h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14"),
        ("h200", "llama-2-7b", "h200-141gb/llama-2-7b/tp1/sglang-0.5.14"),
        ("a10g", "llama-3.2-3b", "a10g-24gb/llama-3.2-3b/tp1/sglang-e2e"),
        ("l", "llama-3.1-8b", "l40s-48gb/llama-3.1-8b/tp1/sglang-0.5.14"),
        (
            "a100-80gb/llama-3.1-8b/tp2/vllm",
            "llama-3.1-8b",
            "a100-80gb/llama-3.1-8b/tp2/vllm-0.14.0",
        ),
    ],
)
def test_a_prefix_picks_the_profile_measured_on_sglang(gpu, model, chosen):
    assert resolve_profile(gpu, model).profile_id == chosen


def test_every_full_id_picks_itself():
    for name in profile_ids():
        assert resolve_profile(name, name.split("/")[1]).profile_id == name


@pytest.mark.parametrize(
    ("gpu", "model", "message"),
    [
        ("h", "llama-3.1-8b", "gpu 'h' is ambiguous: it may be h100-80gb, h200-141gb"),
        ("a1", "llama-3.1-8b", "gpu 'a1' is ambiguous: it may be a100-80gb, a10g-24gb"),
        ("h100_80gb", "llama-3.1-8b", "unknown gpu 'h100_80gb': .* Did you mean 'h100-80gb'"),
        ("a100", "llama-3.1-8", "unknown model 'llama-3.1-8': .* Did you mean 'llama-3.1-8b'"),
        (
            "a100-80gb/llama-2-7b",
            "llama-3.1-8b",
            "gpu 'a100-80gb/llama-2-7b' has no profile for model 'llama-3.1-8b': it has llama-2-7b",
        ),
        (
            "h100-80gb/llama-3.1-8b/tp",
            "llama-2-7b",
            "has no profile for model 'llama-2-7b': it has llama-3.1-8b",
        ),
    ],
)
def test_what_names_no_profile_is_a_usage_error(gpu, model, message):
    with pytest.raises(UsageError, match=message):
        resolve_profile(gpu, model)


def test_model_names_are_those_of_the_profiles():
    assert model_names() == ["llama-2-7b", "llama-3.1-8b", "llama-3.2-3b"]
