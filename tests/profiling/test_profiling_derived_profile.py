"""Test profiles derived from a model's config and a data sheet, including the bundled ones."""

import json
import re

import numpy as np
import pytest

from fairbench.errors import DataError, UsageError
from fairbench.hardware.catalogue import derived_errors, load_profile, profile_ids, resolve_profile
from fairbench_calibration.profiling.derived_profile import (
    derive,
    measured_grade,
    model_config,
    pool_of,
)
from fairbench_calibration.profiling.estimates import (
    ALL_REDUCE,
    LAYER_US,
    LINK_SHARE,
    MEASURED_GB_S,
    OVERLAP,
    SEQUENCE_US,
    NoTable,
    operators_ms,
    roofline_ms,
)
from fairbench_calibration.profiling.fit import Iterations, drawn
from fairbench_calibration.profiling.gpus import GPUS, Interconnect
from fairbench_calibration.profiling.model_shape import shape_of
from tests.hardware.measure_profiles import DATA, FILES, measured
from tests.slow_params import slow

H100 = GPUS["h100-80gb"]


def shape(model):
    return shape_of(model_config(model).config, model)


def one(prefills=0.0, new=0.0, prefix=0.0, decodes=0.0, context=0.0):
    return Iterations(*(np.array([value]) for value in (prefills, new, prefix, decodes, context)))


def test_a_lone_decode_step_reads_weights_and_context_once():
    llama = shape("llama-3.1-8b")
    # without the input table, of which only one row is read
    weights = 2 * (llama.parameters - llama.output_weights)
    context = 1_000 * llama.kv_bytes(1)
    expected = (weights + context) / (H100.memory_gb_s * 1e9 * H100.memory_share)
    small = (32 * LAYER_US + SEQUENCE_US) * 1e-6 * MEASURED_GB_S / H100.memory_gb_s
    ms = roofline_ms(llama, H100, 1, "fp16", one(decodes=1.0, context=1_000.0))[0]
    assert ms == pytest.approx(1_000 * (expected + small), rel=1e-3)  # one product is short


@pytest.mark.parametrize("gpu", ["a40-48gb", "rtx4090-24gb", "mi300x-192gb", "b300-288gb"])
def test_reads_and_products_of_equal_time_hide_each_other_in_part(gpu):
    """If both take t, a layer takes t * 2^(1/p): more than either, less than their sum."""
    llama, card = shape("llama-3.1-8b"), GPUS[gpu]
    read_s = 2 / (card.memory_gb_s * 1e9 * card.memory_share)  # per weight
    tokens = read_s * card.bf16_tflops * 1e12 * card.compute_share / 2
    weights = llama.parameters - llama.output_weights
    batch = one(decodes=tokens, context=0.0)
    small = (32 * LAYER_US + SEQUENCE_US * tokens) * 1e-6 * MEASURED_GB_S / card.memory_gb_s
    ms = roofline_ms(llama, card, 1, "fp16", batch)[0]
    assert ms / 1_000 - small == pytest.approx(weights * read_s * 2 ** (1 / OVERLAP), rel=1e-9)


def test_costs_of_a_sequence_and_a_layer_are_those_of_the_a10g_by_bandwidth():
    measured = load_profile("a10g-24gb/llama-3.1-8b/tp1/sglang-e2e").coefficients_ms
    assert measured["c0"] == pytest.approx(32 * LAYER_US / 1_000, rel=1e-3)
    assert measured["c_nd"] == pytest.approx(SEQUENCE_US / 1_000, rel=1e-3)
    llama = shape("llama-3.1-8b")
    for gpu in ("a10g-24gb", "l4-24gb", "h200-141gb"):
        lone, pair = (
            roofline_ms(llama, GPUS[gpu]._replace(bf16_tflops=1e9), 1, "fp16", one(decodes=n))[0]
            for n in (1.0, 2.0)
        )
        assert pair - lone == pytest.approx(0.0502 * 600 / GPUS[gpu].memory_gb_s, rel=1e-3)


def test_gpus_exchange_data_faster_over_nvlink_than_pcie_and_with_peer_access_than_without():
    qwen, chunk = shape("qwen2.5-7b"), one(1.0, 2_048.0)
    for gpu in ("a40-48gb", "l40s-48gb", "rtx5090-32gb"):
        cards = [GPUS[gpu].with_link(path) for path in Interconnect]
        for it in (chunk, one(decodes=1.0, context=10.0)):
            times = [roofline_ms(qwen, card, 2, "fp16", it)[0] for card in cards]
            assert times == sorted(times)
            assert times[0] < times[2]
    host = GPUS["a40-48gb"]
    assert host.interconnect == Interconnect.PCIE_HOST
    free = host._replace(link_gb_s=1e12)
    slower = roofline_ms(qwen, host, 2, "fp16", chunk) - roofline_ms(qwen, free, 2, "fp16", chunk)
    # 2 all-reduces per layer; each of two GPUs sends its whole activations: 2,048 x 3,584 x 2 bytes
    sent = 2 * 28 * 2_048 * 3_584 * 2 / (25.2e9 * LINK_SHARE * ALL_REDUCE["pcie-host"][1])
    assert slower[0] == pytest.approx(1_000 * sent, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "layers"), [("qwen3-8b", 36), ("llama-3.2-3b", 28), ("qwen3-14b", 40)]
)
def test_sglang_prefills_no_faster_than_it_launches_kernels(model, layers):
    found = derive(model, "h200", roofline=True).profile
    assert found.coefficients_ms["c_l"] == pytest.approx(15 * layers / 36)
    assert found.prefill_ps([(0, 8)]) == pytest.approx(15e9 * layers / 36)
    assert "c_l" not in derive(model, "h200", engine="vllm", roofline=True).profile.coefficients_ms


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("qwen3-8b", "l40s", 1), ("qwen3-30b-a3b", "h100", 2), ("deepseek-v3", "b300", 8)],
)
def test_a_cache_of_8_bits_holds_twice_the_tokens_and_is_read_in_half_the_time(model, gpu, tp):
    full, half = (
        derive(model, gpu, tp=tp, engine="vllm", roofline=True, kv_dtype=dtype).profile
        for dtype in ("fp16", "fp8")
    )
    assert half.profile_id.split("/")[1] == full.profile_id.split("/")[1] + "-kv-fp8"
    pools = [one.pool.tokens(one.pool.mem_fraction_static) for one in (full, half)]
    assert pools[1] == pytest.approx(2 * pools[0], abs=2)
    reads = [one.coefficients_ms["c_K"] for one in (full, half)]
    assert reads[1] == pytest.approx(reads[0] / 2, rel=0.15)


def test_the_grade_states_the_measured_errors():
    assert re.fullmatch(
        r"derived: roofline of data sheet and config; time per token within 10% in \d+ of \d+ "
        r"measured runs on \d+ GPUs, at worst \d+% off",
        measured_grade(),
    )
    assert derive("qwen2.5-32b", "mi300x", roofline=True).profile.grade == measured_grade()


@pytest.mark.slow
def test_the_table_of_errors_is_current():
    if not DATA.is_dir():
        pytest.skip(f"{DATA}, measured runs that are not shipped, is missing")
    rows = {tuple(row[key] for key in ("engine", "gpu", "tp")): row for row in derived_errors()}
    for row in measured([file for file in FILES if "a10g" in file.name or "tp2" in file.name]):
        assert row == rows[row["engine"], row["gpu"], row["tp"]]


def test_a_long_prompt_is_limited_by_arithmetic():
    llama = shape("llama-3.1-8b")
    products = 2 * llama.active_parameters * 4_096 / (989e12 * H100.compute_share)
    ms = roofline_ms(llama, H100, 1, "fp16", one(1.0, 4_096.0))[0]
    assert products * 1_000 < ms < 1.2 * products * 1_000  # attention, and launches of the layers


def test_a_mixture_of_experts_reads_the_chosen_experts():
    mixtral = shape("mixtral-8x7b")
    lone, many = (
        roofline_ms(mixtral, H100, 2, "fp16", one(decodes=n, context=1.0))[0] for n in (1.0, 100.0)
    )
    assert 2.5 < many / lone < 4  # 2 of 8 experts instead of all


@pytest.mark.parametrize(("model", "tp"), [("qwen3-30b-a3b", 2), ("mixtral-8x7b", 4)])
def test_experts_in_fp8_multiply_at_the_rate_of_16_bits(model, tp):
    prompt = one(1.0, 8_192.0)
    dense, mixture = (
        [roofline_ms(shape(name), H100, gpus, dtype, prompt)[0] for dtype in ("fp16", "fp8")]
        for name, gpus in (("llama-3.1-8b", 1), (model, tp))
    )
    # The operators of vLLM 0.24.0 and SGLang 0.5.14 take 0.72 times as long for the dense model,
    # and 0.87 to 1.06 times as long for the mixtures.
    assert dense[1] / dense[0] < 0.75
    assert 0.85 < mixture[1] / mixture[0] < 1.0


def test_fewer_bits_and_more_gpus_need_less_time():
    llama, step = shape("llama-3.1-8b"), one(decodes=1.0, context=100.0)
    times = [roofline_ms(llama, H100, 1, dtype, step)[0] for dtype in ("fp16", "fp8", "int4")]
    assert times == sorted(times, reverse=True)
    split = roofline_ms(llama, H100, 4, "fp16", step)[0]
    assert times[0] / 4 < split < times[0]


@pytest.mark.parametrize(
    "gpu", ["h100-80gb", *slow("a100-80gb", "h200-141gb", "b200-180gb", "l40s-48gb")]
)
def test_rooflines_are_near_the_operators(gpu):
    """The comparison covers all bundled pairs of a dense model and a GPU, at realistic sizes."""
    compared = 0
    for name in profile_ids():
        _, model, parallel, source = name.split("/")
        if (
            not name.startswith(f"{gpu}/")
            or "-a3b" in model
            or "llama-2" in model
            or parallel != "tp1"
        ):
            continue
        if not source.startswith("sglang-0") or model.startswith("gpt-oss"):
            continue
        ours, theirs = derive(model, gpu, roofline=True).profile, load_profile(name)
        for batch in (1, 64):
            ratio = ours.decode_ps(batch, batch * 1_000) / theirs.decode_ps(batch, batch * 1_000)
            assert 0.65 < ratio < 1.35, name
        ratio = ours.prefill_ps([(0, 4_096)]) / theirs.prefill_ps([(0, 4_096)])
        assert 0.65 < ratio < 1.45, name
        compared += 1
    assert compared


def test_the_grade_names_its_source():
    found = derive("Qwen/Qwen3-14B-Instruct", "H100", roofline=True)
    assert found.profile.profile_id == "h100-80gb/qwen3-14b/tp1/roofline"
    assert found.profile.grade.startswith("derived: roofline")
    assert found.source.endswith("config of Qwen/Qwen3-14B, fp16 weights, fp16 KV cache")
    assert found.error_pct["MAPE"] < 2
    assert derive("qwen3-14b", "h100", dtype="fp8", roofline=True).profile.profile_id == (
        "h100-80gb/qwen3-14b-fp8/tp1/roofline"
    )


def test_the_pool_is_the_memory_beside_the_weights():
    pool = pool_of(shape("qwen3-14b"), H100, 1, "fp16")
    assert pool.tokens(0.83) == int((78.8 * 0.83 - pool.weights_gib) * 2**30 / 163_840)
    with pytest.raises(
        UsageError, match=r"gpu h100-80gb: fp16 weights take 131.4 GiB on each of 1"
    ):
        derive("llama-3.1-70b", "h100")
    with pytest.raises(UsageError, match=r"gpu h100-80gb: fp8 weights take 78.3 GiB on each of 8"):
        derive("deepseek-v3", "h100", tp=8)


def test_a_config_of_the_user_is_derived(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps({**model_config("qwen3-8b").config, "num_hidden_layers": 18}))
    for given in (path, folder):
        found = derive(str(given), "h100", roofline=True)
        assert found.profile.profile_id == "h100-80gb/my-model/tp1/roofline"
    assert found.profile.decode_ps(1, 0) < 0.6 * derive(
        "qwen3-8b", "h100", roofline=True
    ).profile.decode_ps(1, 0)
    unknown = {**model_config("qwen3-8b").config, "quantization_config": {"quant_method": "hqq"}}
    path.write_text(json.dumps(unknown))
    assert derive(str(path), "h100", dtype="int4", roofline=True).profile.pool.weights_gib < 7
    with pytest.raises(UsageError, match=r"quant_method = 'hqq': .* give --dtype fp16, fp8 \(8"):
        derive(str(path), "h100", roofline=True)
    path.write_text("{}")
    with pytest.raises(DataError, match=r"config.json: num_attention_heads: missing"):
        derive(str(path), "h100")
    with pytest.raises(UsageError, match=r"unknown model 'quen3-8b'.* Did you mean 'qwen3-8b'"):
        derive("quen3-8b", "h100")


def test_every_derived_profile_has_a_grade_and_is_found_by_its_name_on_the_hub():
    kinds = ("sglang-0", "roofline")
    derived = [
        n for n in profile_ids() if load_profile(n).grade.startswith(("operators:", "derived:"))
    ]
    assert len(derived) == 34
    assert all(name.split("/")[3].startswith(kinds) for name in derived)
    for gpu, model, chosen in (
        ("b200", "openai/gpt-oss-120b", "b200-180gb/gpt-oss-120b/tp1/sglang-0.5.14"),
        ("h200", "deepseek-ai/DeepSeek-V3", "h200-141gb/deepseek-v3/tp8/sglang-0.5.14"),
        ("a100", "Mixtral-8x7B-Instruct-v0.1", "a100-80gb/mixtral-8x7b/tp2/sglang-0.5.10"),
        ("b200", "Meta-Llama-3-8B-Instruct", "b200-180gb/llama-3.1-8b/tp1/sglang-0.5.14"),
        ("a100", "gpt-oss-20b", "a100-80gb/gpt-oss-20b/tp1/roofline"),
        ("h100", "Qwen3-30B-A3B-Instruct-2507", "h100-80gb/qwen3-30b-a3b/tp1/sglang-0.5.14"),
        ("h200", "deepseek-ai/DeepSeek-R1", "h200-141gb/deepseek-v3/tp8/sglang-0.5.14"),
    ):  # fmt: skip
        assert resolve_profile(gpu, model).profile_id == chosen


def test_the_operators_of_the_tables_match_the_bundle():
    pytest.importorskip("aiconfigurator_core", reason="the profile extra is not installed")
    name = "h100-80gb/qwen3-14b/tp1/vllm-0.24.0"
    found, bundled = derive("qwen3-14b", "h100", engine="vllm").profile, load_profile(name)
    assert found.profile_id == name
    for batch in (1, 16, 256):
        ours, theirs = (one.decode_ps(batch, batch * 1_000) for one in (found, bundled))
        assert ours == pytest.approx(theirs, rel=0.02)


def test_a_gpu_without_tables_is_reported():
    it = drawn(3, np.random.default_rng(0))
    config = model_config("qwen3-8b").config
    with pytest.raises(NoTable, match=r"no a10g-24gb|is not installed"):
        operators_ms(config, GPUS["a10g-24gb"], 1, "sglang", None, it)
    assert derive("llama-3.2-3b", "a10g").note
