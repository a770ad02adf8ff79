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
        ({"num_key_value_heads": 8}, "x: num_key_value_heads = 8: must be at most 4"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false': must be true or false"),
        ({"text_config": "x"}, "x: text_config = 'x': must be a table"),
        ({"quantization_config": ["awq"]}, r"x: quantization_config = \['awq'\]: must be a table"),
        ({"layer_types": "full"}, "x: layer_types = 'full': must be a list"),
        ({"layer_types": ["mamba", "attention"]}, "x: layer_types: 'mamba': only layers with att"),
        ({"mamba_d_state": 16}, "x: mamba_d_state: only layers with attention"),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": "4"},
            "x: sliding_window = '4': must be a positive integer",
        ),
        ({"num_experts": -8}, "x: num_experts = -8: must be a positive integer"),
        ({"num_experts": [8]}, r"x: num_experts = \[8\]: must be a positive integer"),
        (
            {"num_experts": 8, "num_experts_per_tok": 9},
            "x: num_experts_per_tok = 9: must be at most 8, the num_experts",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 3},
            "x: first_k_dense_replace = 3: must be at most 2, the num_hidden_layers",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": "1"},
            "x: n_shared_experts = '1': must be a positive integer",
        ),
        (
            {"kv_lora_rank": 4, "q_lora_rank": "8", "qk_rope_head_dim": 2},
            "x: q_lora_rank = '8': must be a positive integer",
        ),
    ],
)
def test_a_wrong_config_is_named(change, message):
    with pytest.raises(DataError, match=message):
        shape_of({**TINY, **change}, "x")


@pytest.mark.parametrize(
    ("change", "weights"),
    [  # weights of the MLPs of two layers with all experts: matrices of 8 x 16 or 8 x 32
        ({"model_type": "llama"}, 2 * 3 * 8 * 16),
        ({"model_type": "starcoder2"}, 2 * 2 * 8 * 16),
        (  # a dense layer; a layer with a router, four experts and the shared expert
            {
                "model_type": "llama4_text",
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 32,
            },
            3 * 8 * 32 + 8 * 4 + 5 * 3 * 8 * 16,
        ),
        ({"decoder_sparse_step": 2}, 3 * 8 * 16 + 8 * 4 + 4 * 3 * 8 * 16),
        ({"moe_layer_freq": [0, 1]}, 3 * 8 * 16 + 8 * 4 + 4 * 3 * 8 * 16),
    ],
)
def test_the_weights_of_mlps_equal_a_hand_count(change, weights):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1}
    moe = experts if {*change} - {"model_type"} else {}
    assert shape_of({**TINY, **moe, **change}, "tiny").mlp_weights(4) == weights


@pytest.mark.parametrize(
    "change",
    [
        {"full_attention_interval": 2},
        {"layer_types": ["linear_attention", "full_attention"]},
        {"attn_type_list": [0, 1]},
    ],
)
def test_layers_with_linear_attention_cache_nothing(change):
    assert shape_of({**TINY, **change}, "tiny").kv_bytes(1) == 2 * 1 * 2 * 2 * 2


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "fp8"),
        ({"quant_method": "gptq", "bits": 3}, ""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, ""),
        ({"config_groups": {"a": {"weights": {"num_bits": 8}}}}, "fp8"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4}}}}, "int4"),
        ({"config_groups": {n: {"weights": {"num_bits": int(n)}} for n in ("4", "8")}}, ""),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}}, ""),
        ({"quant_method": "hqq"}, ""),
    ],
)
def test_the_bits_of_quantized_weights_are_read(quantization, dtype):
    assert shape_of({**TINY, "quantization_config": quantization}, "x").dtype == dtype
    whole = {"text_config": TINY, "quantization_config": quantization}
    assert shape_of(whole, "x").dtype == dtype


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
