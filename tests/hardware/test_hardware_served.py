"""Test vLLM's KV pool against public logs, and the costs that servers add to operator times."""

import json
from dataclasses import replace
from importlib.resources import files

import pytest

from fairbench.files.formats import dumps
from fairbench.hardware.catalogue import (
    load_profile,
    model_configs,
    profile_ids,
    read_profile,
    table_of,
    with_serving,
)
from fairbench.hardware.engine_params import (
    EngineParams,
    VLLMParams,
    default_batch,
    engine_limits,
    vllm_limits,
    vllm_pool_tokens,
)
from fairbench_calibration.profiling.derived_profile import derive, pool_of
from fairbench_calibration.profiling.gpus import GPUS
from fairbench_calibration.profiling.model_shape import shape_of, vllm_memory

ENTRIES = json.loads(
    (files("fairbench.hardware") / "profiles/engine_profiles.json").read_text(encoding="utf-8")
)["profiles"]


def pool_tokens(model, gpu, *, utilization, tp=1, dtype="fp16", kv_dtype="fp16", **limits):
    shape = shape_of(model_configs()[model]["config"], model)
    pool = pool_of(shape, GPUS[gpu], tp, dtype, kv_dtype)
    return vllm_pool_tokens(pool, vllm_memory(pool, shape, gpu, tp, utilization), **limits)


SMALL, LARGE = {"tokens": 2_048, "sequences": 256}, {"tokens": 8_192, "sequences": 1_024}


@pytest.mark.parametrize(
    ("model", "gpu", "limits", "logged", "percent"),
    [
        ("llama-3.1-8b", "h100-80gb", {"utilization": 0.85, **LARGE}, 411_184, 0.2),
        ("llama-3.1-8b", "a100-80gb", {"utilization": 0.85, **SMALL}, 419_728, 0.2),
        # logs for which no number was chosen
        ("qwen2.5-7b", "a40-48gb", {"utilization": 0.92, **SMALL}, 476_832, 0.5),
        ("qwen3-14b", "h100-80gb",
         {"utilization": 0.92, "tokens": 8_192, "sequences": 256}, 288_608, 1.5),
        ("qwen3-30b-a3b", "h100-80gb", {"utilization": 0.85, "tp": 2, "dtype": "fp8",
         "kv_dtype": "fp8", **LARGE}, 2_237_040, 1.5),
    ],
)  # fmt: skip
def test_the_pool_of_vllm_equals_public_logs(model, gpu, limits, logged, percent):
    assert pool_tokens(model, gpu, **limits) == pytest.approx(logged, rel=percent / 100)


def test_a_larger_profiling_step_leaves_less_memory():
    # Beside 1,024 sequences, sampling needs 10 bytes for each of 128,256 logits, and 8,192 hidden
    # states of 4,096 values of 2 bytes are kept. Beside 256 sequences and 2,048 tokens, a quarter
    # is needed.
    large, small = (
        pool_tokens("llama-3.1-8b", "h100-80gb", utilization=0.85, **limits)
        for limits in (LARGE, SMALL)
    )
    gib = 0.75 * (1_024 * 128_256 * 10 + 8_192 * 4_096 * 2) / 2**30
    assert (small - large) * 131_072 / 2**30 == pytest.approx(gib, abs=0.005)
    assert large % 16 == small % 16 == 0


@pytest.mark.parametrize("gpu", ["h100", "a100", "rtx4090"])
def test_vllm_in_a_simulated_run_has_its_own_pool_if_the_profile_is_derived_for_vllm(gpu, tmp_path):
    found = derive("llama-3.1-8b", gpu, engine="vllm", roofline=True)
    file = tmp_path / "mine.toml"
    file.write_text(dumps(table_of(found.profile, found.source, {})), encoding="utf-8")
    profile = read_profile(str(file))
    pool, (tokens, sequences) = profile.pool, default_batch(profile)
    limits = {"tokens": tokens, "sequences": sequences}
    own = pool_tokens("llama-3.1-8b", found.profile.profile_id.split("/")[0], utilization=0.92,
                      **limits)  # fmt: skip
    assert vllm_limits(VLLMParams(), profile).pool_tokens == pytest.approx(own, abs=16)
    larger = replace(pool, vllm=replace(pool.vllm, gpu_memory_utilization=0.95))
    assert vllm_limits(VLLMParams(), replace(profile, pool=larger)).pool_tokens > own
    given = VLLMParams(num_gpu_blocks_override=1_000)
    assert vllm_limits(given, profile).pool_tokens == 16_000
    equal = engine_limits(EngineParams(), profile).pool_tokens
    assert equal == pool.tokens(pool.mem_fraction_static)


def test_vllm_of_bundled_profiles_has_the_pool_of_sglang():
    for name in profile_ids():
        profile = load_profile(name)
        assert profile.pool.vllm is None
        equal = engine_limits(EngineParams(), profile).pool_tokens
        assert vllm_limits(VLLMParams(), profile).pool_tokens == equal


def test_without_memory_for_kv_the_pool_is_empty():
    assert pool_tokens("llama-3.1-8b", "a10g-24gb", utilization=0.7, **SMALL) == 0


def test_servers_on_hopper_add_slower_layers_and_sampling():
    entry = {"c_T": 0.02, "c_nd": 0.001, "c_w": 5.0}
    h100 = with_serving(entry, "h100-80gb", 151_936)
    assert h100 == pytest.approx({"c_T": 0.022, "c_nd": 0.012, "c_w": 5.0})
    assert with_serving(entry, "h100-80gb", 75_968)["c_nd"] == pytest.approx(0.006)
    assert with_serving(entry, "h200-141gb", 151_936)["c_nd"] == pytest.approx(
        0.012 * 3_350 / 4_800
    )
    assert with_serving({**entry, "c_nd": 0.05}, "h100-80gb", 151_936)["c_nd"] == 0.05
    assert with_serving(entry, "a100-80gb", 151_936) == entry


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("h100-80gb/llama-3.1-8b/tp1/vllm-0.24.0", {"c_T", "c_nd"}),
        ("h200-141gb/llama-3.1-8b/tp1/vllm-0.24.0", {"c_T", "c_nd"}),
        ("a100-80gb/llama-3.1-8b/tp1/vllm-0.14.0", set()),
        ("l40s-48gb/llama-3.1-8b/tp1/vllm-0.24.0", set()),
        ("h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14", set()),
        ("h100-80gb/qwen3-14b/tp1/measured-vllm", set()),
    ],
)
def test_only_vllms_operator_profiles_on_hopper_have_the_costs(name, changed):
    found, entry = load_profile(name).coefficients_ms, ENTRIES[name]["coefficients_ms"]
    assert {key for key in entry if found[key] != entry[key]} == changed


def test_the_factor_of_linear_layers_is_that_of_two_measured_servers():
    for measured, operators in (
        ("h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton", "sglang-0.5.14"),
        ("h100-80gb/qwen3-14b/tp1/measured-vllm", "vllm-0.24.0"),
    ):
        place = measured.rsplit("/", 1)[0]
        ratio = load_profile(measured).coefficients_ms["c_T"]
        ratio /= ENTRIES[f"{place}/{operators}"]["coefficients_ms"]["c_T"]
        assert ratio == pytest.approx(1.10, abs=0.015)


@pytest.mark.parametrize(("gpu", "published_ms"), [("h100-80gb", 1_077), ("h200-141gb", 1_166)])
def test_published_times_of_long_prompts_are_nearer(gpu, published_ms):
    name = f"{gpu}/llama-3.1-8b/tp1/vllm-0.24.0"
    served = load_profile(name)
    table = replace(served, coefficients_ms=ENTRIES[name]["coefficients_ms"])
    ours, before = (one.prefill_ps([(0, 28_650)]) / 1e9 for one in (served, table))
    assert before < ours < published_ms
