"""Test the bundled profiles: shared numbers and names."""

import json

import pytest

from fairbench.errors import UsageError
from fairbench.hardware.catalogue import (
    load_profile,
    model_configs,
    model_names,
    profile_ids,
    resolve_profile,
    with_serving,
)
from tests.shared_data import PROFILES, needs


@needs(PROFILES)
def test_the_bundled_coefficients_equal_the_shared_files():
    text = (PROFILES / "engine_profiles.json").read_text(encoding="utf-8")
    shared = {key.lower(): value for key, value in json.loads(text)["profiles"].items()}
    ours = "a10g-24gb/llama-2-7b/tp1/slora-fitted"  # fitted by this project, see fairbench validate
    assert {*shared, ours} <= {*profile_ids()}
    for name, entry in shared.items():
        profile = load_profile(name)
        gpu, model, _, source = name.split("/")
        expected = entry["coefficients_ms"]
        if source.startswith("vllm-"):
            expected = with_serving(expected, gpu, model_configs()[model]["config"]["vocab_size"])
        assert profile.coefficients_ms == expected
        assert profile.host_ms == entry["host_ms_default"]
        assert profile.grade == entry["grade"]


@needs(PROFILES)
def test_the_bundled_pools_equal_the_shared_files():
    data = json.loads((PROFILES / "kv_pools.json").read_text(encoding="utf-8"))
    pools = {key.lower(): value for key, value in data["pools"].items()}
    of_one_gpu = {name.rsplit("/", 2)[0]: name for name in profile_ids() if "/tp1/" in name}
    found = pools.keys() & of_one_gpu
    assert len(found) >= 8
    for place in found:
        gpu = place.partition("/")[0]
        mine, theirs = load_profile(of_one_gpu[place]).pool, pools[place]
        for field in ("pre_load_avail_gib", "weights_gib", "kv_bytes_per_token"):
            assert getattr(mine, field) == theirs[field]
        assert mine.tokens(0.88) == theirs["pool_tokens_0_88"]
        fraction = theirs["mem_fraction_static_0_5_23"]
        assert mine.tokens(fraction) == theirs["pool_tokens_0_5_23"]
        is_a10g = gpu.startswith("a10g")  # as in the papers, and with smaller chunks
        assert mine.mem_fraction_static == (0.88 if is_a10g else fraction)
        assert mine.chunked_prefill_size == (2048 if is_a10g else theirs["chunked_prefill_size"])


@pytest.mark.parametrize(
    ("gpu", "model", "chosen"),
    [
        ("a100", "llama-3.1-8b", "a100-80gb/llama-3.1-8b/tp1/measured-sglang"),
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
def test_a_prefix_selects_the_profile_measured_on_sglang(gpu, model, chosen):
    assert resolve_profile(gpu, model).profile_id == chosen


def test_every_full_id_selects_its_own_profile():
    for name in profile_ids():
        assert resolve_profile(name, name.split("/")[1]).profile_id == name


@pytest.mark.parametrize(
    ("gpu", "model", "message"),
    [
        ("h", "llama-3.1-8b", "gpu 'h' is ambiguous: choose from h100-80gb, h200-141gb"),
        ("a1", "llama-3.1-8b", "gpu 'a1' is ambiguous: choose from a100-80gb, a10g-24gb"),
        ("L4", "llama-3.1-8b", "unknown gpu 'L4'.* `fairbench profile MODEL --gpu L4 -o PROFILE"),
        ("l40", "llama-3.1-8b", "unknown gpu 'l40'"),
        ("h20", "llama-3.1-8b", "unknown gpu 'h20'"),
        ("a10", "qwen3-8b", "unknown gpu 'a10'"),
        ("h100_80gb", "llama-3.1-8b", "unknown gpu 'h100_80gb': .* Did you mean 'h100-80gb'"),
        ("a100", "llama-3.1-8", "unknown model 'llama-3.1-8': .* Did you mean 'llama-3.1-8b'"),
        (
            "a100-80gb/llama-2-7b",
            "llama-3.1-8b",
            "has no profile for model 'llama-3.1-8b': choose from llama-2-7b",
        ),
        (
            "h100-80gb/llama-3.1-8b/tp",
            "llama-2-7b",
            "has no profile for model 'llama-2-7b': choose from llama-3.1-8b",
        ),
    ],
)
def test_an_unknown_profile_name_is_a_usage_error(gpu, model, message):
    with pytest.raises(UsageError, match=message):
        resolve_profile(gpu, model)


def test_model_names_match_the_profiles():
    assert {"llama-2-7b", "llama-3.1-8b", "llama-3.2-3b"} <= {*model_names()}
    assert {name.split("/")[1] for name in profile_ids()} == {*model_names()}
