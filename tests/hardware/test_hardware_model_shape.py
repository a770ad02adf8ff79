"""Test model shapes: published sizes, KV per token, and errors in a config."""

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench_calibration.profiling.derived_profile import bundled_models, model_config
from fairbench_calibration.profiling.gpus import GPUS, find_gpu
from fairbench_calibration.profiling.model_shape import check_split, shape_of

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 100,
}


def bundled(model):
    return shape_of(model_config(model).config, model)


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [  # in billions, as on the models' cards; active parameters without the input table
        ("llama-3.1-8b", 8.03, 7.50),
        ("llama-3.1-70b", 70.6, 69.5),
        ("qwen3-14b", 14.8, 14.0),
        ("qwen3-32b", 32.8, 32.0),
        ("qwen3-30b-a3b", 30.5, 3.0),
        ("mixtral-8x7b", 46.7, 12.8),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gpt-oss-120b", 117, 5.1),
        ("deepseek-v3", 671, 36.6),
    ],
)
def test_parameter_counts_match_the_model_cards(model, parameters, active):
    shape = bundled(model)
    assert shape.parameters / 1e9 == pytest.approx(parameters, rel=0.005)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_the_parameters_of_a_tiny_model_equal_a_hand_count():
    shape = shape_of(TINY, "tiny")
    assert shape.attention_weights == 8 * 8 + 2 * 8 * 4 + 8 * 8  # q, k and v, o; heads of size 2
    assert shape.mlp_weights(0) == 2 * 3 * 8 * 16
    assert shape.parameters == 2 * 192 + 768 + 2 * 800
    assert shape.weight_bytes("fp16") == 2 * shape.parameters
    assert shape.weight_bytes("fp8") == (2 * 192 + 768) * 1 + 1600 * 2  # the tables keep 16 bits
    assert shape.kv_bytes(1) == 2 * 2 * 2 * 2 * 2
    assert shape.kv_bytes(2) == shape.kv_bytes(4) == 16  # a head is not split


def test_pools_of_the_measured_models_follow_from_their_configs():
    for name in profile_ids():
        model, degree = name.split("/")[1], int(name.split("/")[2][2:])
        profile = load_profile(name)
        shape = bundled(model)
        assert profile.pool.kv_bytes_per_token == shape.kv_bytes(degree)
        weights = shape.weight_bytes(shape.dtype) / degree / 2**30
        assert profile.pool.weights_gib == pytest.approx(weights, rel=0.007)


def test_a_latent_cache_is_whole_on_every_gpu():
    shape = bundled("deepseek-v3")
    assert shape.kv_bytes(8) == shape.kv_bytes(1) == 61 * (512 + 64) * 2


def test_published_types_of_weights_are_read():
    types = {name: bundled(name).dtype for name in bundled_models()}
    assert types.pop("deepseek-v3") == "fp8"
    assert types.pop("gpt-oss-20b") == types.pop("gpt-oss-120b") == "mxfp4"
    assert {*types.values()} == {"fp16"}
    assert bundled("gpt-oss-120b").weight_bytes("mxfp4") / 1e9 == pytest.approx(65, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "x: hidden_size: missing"),
        ({"vocab_size": "many"}, "x: vocab_size = 'many': must be a positive integer"),
        ({"num_hidden_layers": 0}, "x: num_hidden_layers = 0: must be a positive integer"),
    ],
)
def test_a_wrong_config_is_named(change, message):
    with pytest.raises(DataError, match=message):
        shape_of({**TINY, **change}, "x")


def test_a_model_is_split_by_its_heads():
    check_split(shape_of(TINY, "tiny"), 4)
    with pytest.raises(UsageError, match="--tp 3: must divide the 4 attention heads: 1, 2, 4"):
        check_split(shape_of(TINY, "tiny"), 3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100-80gb"), ("H100", "h100-80gb"), ("NVIDIA_H200", "h200-141gb"),
        ("a100-sxm4-80gb", "a100-80gb"), ("b200", "b200-180gb"), ("l4", "l4-24gb"),
        ("l40s-48gb", "l40s-48gb"), ("a10g", "a10g-24gb"),
        ("NVIDIA A40", "a40-48gb"), ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("rtx_5090", "rtx5090-32gb"), ("RTX PRO 6000 Blackwell", "rtxpro6000-96gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"), ("GH200", "gh200-96gb"), ("b300", "b300-288gb"),
        ("NVIDIA L4", "l4-24gb"), ("gh200-96GB", "gh200-96gb"),
    ],
)  # fmt: skip
def test_spellings_of_gpus_are_recognised(text, name):
    assert find_gpu(text) is GPUS[name]


@pytest.mark.parametrize("text", ["", "v100", "a100-40gb", "l40", "h20"])
def test_unknown_gpus_are_refused(text):
    with pytest.raises(UsageError, match=f"unknown gpu '{text}': choose from a100-80gb, "):
        find_gpu(text)


def test_an_ambiguous_gpu_is_refused():
    with pytest.raises(UsageError, match="choose from a10g-24gb, a100-80gb"):
        find_gpu("a1")
