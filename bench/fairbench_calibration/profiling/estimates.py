"""Estimated times of iterations, from tables of measured operators or from a roofline model.

The operator tables come with the optional package ``aiconfigurator-core``, which adds operator
times up to iteration times. NVIDIA measured the operator times on real GPUs.

The roofline model uses the numbers in a GPU's data sheet and the shape of a model. In an iteration,
the GPU reads weights and KV cache once, and computes matrix products. In a layer, memory reads and
matrix products overlap only partly. The fractions of peak speed that kernels reach are typical
values, which were not measured on the given GPU.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairbench_calibration.profiling.fit import Column, Iterations
from fairbench_calibration.profiling.gpus import GPU, Interconnect
from fairbench_calibration.profiling.model_shape import WEIGHT_BYTES, ModelShape

PACKAGE = "aiconfigurator_core"
_KV = {
    "fp16": {"activation_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
    "fp8": {"activation_dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
_WEIGHTS = {
    "fp16": {"weight_dtype": "bfloat16", "moe_dtype": "bfloat16"},
    "fp8": {"weight_dtype": "fp8_block", "moe_dtype": "fp8_block"},
    "int4": {"weight_dtype": "int4", "moe_dtype": "int4"},
}


class NoTable(Exception):
    """An error because the operator tables lack the GPU or an operator of the model."""


def operators_ms(
    config: Mapping[str, Any], gpu: GPU, tp: int, engine: str, dtype: str | None, it: Iterations,
    kv_dtype: str = "fp16",
) -> tuple[Column, str]:  # fmt: skip
    """Return each iteration's time in ms, and the engine release whose operators NVIDIA measured.

    Args:
        config: The model's ``config.json``.
        gpu: The GPU that runs the iterations.
        tp: Number of GPUs that share the model.
        engine: ``sglang`` or ``vllm``.
        dtype: Data type of the weights, or None for the data type in the config.
        it: The iterations whose times are estimated.
        kv_dtype: Data type of the KV cache, ``fp16`` or ``fp8``.

    Raises NoTable if the operator tables lack the GPU or an operator of the model.
    """
    if find_spec(PACKAGE) is None:
        raise NoTable("aiconfigurator-core is not installed: pip install '.[profile]'")
    if gpu.system is None:
        raise NoTable(f"the operator tables contain no times for the GPU {gpu.name}")
    from aiconfigurator_core.sdk.perf_database import resolve_query_version
    from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

    with _quiet(), TemporaryDirectory() as folder:
        own = {key: value for key, value in config.items() if key != "quantization_config"}
        kept = dict(config) if dtype is None else own
        (Path(folder) / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        chosen = {} if dtype is None else _WEIGHTS[dtype]
        given: dict[str, Any] = {"schema_version": 1, "pp_size": 1, "attention_dp_size": 1}
        given |= {"moe_tp_size": tp, "moe_ep_size": 1, "tp_size": tp}
        given |= {"backend": engine, "backend_version": "current"}
        given |= {"model_path": folder, "model_name": folder}
        given |= {"system": gpu.system, "system_name": gpu.system} | chosen
        missing = ""
        # Some GPUs lack measurements of latent attention with ``kv_dtype``: retry without it.
        for kv in (_KV[kv_dtype], {}):
            try:
                model = RustForwardPassPerfModel.from_native(given | kv)
                times = [_estimated_ms(model, row) for row in zip(*it, strict=True)]
            # aiconfigurator defines no exception class, so any exception means a missing operator.
            except Exception as error:
                missing = missing or " ".join(str(error).split()).partition(" at /")[0]
                continue
            return np.array(times), str(resolve_query_version(gpu.system, engine, "current"))
        raise NoTable(f"the operator tables lack an operator of the model: {missing[:160]}")


def _estimated_ms(model: Any, row: tuple[float, ...]) -> float:
    prefills, new, prefix, decodes, context = map(int, row)
    scheduled = {
        "num_prefill_requests": prefills,
        "sum_prefill_tokens": prefills * new,
        "sum_prefill_kv_tokens": prefills * prefix,
        "var_prefill_length": 0.0,
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": decodes * context,
        "var_decode_kv_tokens": 0.0,
    }
    return float(model.estimate_forward_pass_time_ms({"scheduled_requests": scheduled}))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages in which ``aiconfigurator-core`` reports fallbacks."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


ATTENTION_SHARE = 0.50  # fraction of the GPU's peak FLOPS that attention's matrix products reach
# ``OVERLAP`` is the exponent p of the roofline model (median for Llama-3.1-8B on 5 GPUs).
OVERLAP = 1.9
# Times of norms, activations and sampling with SGLang on an A10G (Llama-3.1-8B and 3.2-3B). With
# twice the memory bandwidth, norms, activations and sampling are assumed to take half the time.
MEASURED_GB_S, MEASURED_VOCABULARY = 600, 128_256
LAYER_US = 88.7  # microseconds for the norms and activations of a layer
SEQUENCE_US = 50.2  # microseconds for sampling one token of a sequence
EXPERT_SHARE = 0.86  # speed of small experts' matrix products, relative to dense products
LINK_SHARE = 0.80  # fraction of the link's bandwidth that transfers between GPUs reach
MS = 1e3

ALL_REDUCE = {
    Interconnect.NVLINK: (12.0, 1.0),
    Interconnect.PCIE: (18.0, 1.0),
    Interconnect.PCIE_HOST: (30.0, 0.5),
}
"""The latency of an all-reduce in us, and the usable fraction of the bandwidth, by interconnect.

Without peer access, all data pass through the host's memory, so the bandwidth is halved.
"""


def roofline_ms(
    shape: ModelShape, gpu: GPU, tp: int, dtype: str, it: Iterations, kv_dtype: str = "fp16"
) -> Column:
    """Return the time (ms) of each iteration on each of ``tp`` GPUs, by the roofline model."""
    bandwidth = gpu.memory_gb_s * 1e9 * gpu.memory_share
    linear = _linear_s(shape, gpu, dtype, it.tokens, bandwidth) / tp
    attention = _attention_s(shape, gpu, tp, it, shape.kv_bytes(tp, kv_dtype) / bandwidth)
    slower = MEASURED_GB_S / gpu.memory_gb_s
    sampling = SEQUENCE_US * shape.vocabulary / MEASURED_VOCABULARY
    small_kernels = slower * 1e-6 * (shape.layers * LAYER_US + sampling * it.decodes)
    rest = small_kernels + _all_reduce_s(shape, gpu, tp, it.tokens)
    return np.asarray(MS * (linear + attention + rest))


def _attention_s(shape: ModelShape, gpu: GPU, tp: int, it: Iterations, token_s: float) -> Column:
    """Return the time (s) of attention: its matrix products and its reads of the KV cache.

    ``token_s`` is the time to read the KV cache of one token, in seconds.
    """
    full = shape.cached_layers - shape.windowed_layers
    heads, latent = shape.heads / tp, shape.latent
    pair = (
        4 * shape.head_dim
        if latent is None
        else 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim)
    )
    near = np.minimum(it.attended, it.new * shape.window)
    pairs = full * it.attended + shape.windowed_layers * near
    multiply = it.prefills * pairs * heads * pair / (gpu.bf16_tflops * 1e12 * ATTENTION_SHARE)
    read = (
        _context_read(shape, full, it.context) * it.decodes
        + _context_read(shape, full, it.prefix) * it.prefills
    )
    return np.asarray(multiply + read * token_s / max(1, shape.cached_layers))


def _linear_s(shape: ModelShape, gpu: GPU, dtype: str, tokens: Column, bandwidth: float) -> Column:
    """Return the time (s) of linear layers; memory reads and matrix products partly overlap."""
    dense_bytes = 2.0 if dtype == "mxfp4" else WEIGHT_BYTES[dtype]
    attention = shape.layers * shape.attention_weights
    active = shape.mlp_weights(shape.experts.active if shape.experts else 0)
    read: Column | float = active
    share = 1.0
    if shape.experts is not None:
        # In a step, the GPU reads each expert that at least one token uses.
        none, every = shape.mlp_weights(0), shape.mlp_weights(shape.experts.count)
        read, share = none + (every - none) * (1 - shape.experts_left**tokens), EXPERT_SHARE
    total = np.zeros_like(tokens)
    for weights, loaded, each, of_dense in (
        (attention, attention, dense_bytes, 1.0),
        (active, read, WEIGHT_BYTES[dtype], share),
        (shape.output_weights, shape.output_weights, 2.0, 1.0),
    ):
        # In measurements, the experts of MoE models take about as long in fp8 as in 16 bits.
        fast = each == WEIGHT_BYTES["fp8"] and of_dense == 1.0 and gpu.fp8_tflops
        multiply = 2 * weights * tokens / ((fast or gpu.bf16_tflops) * 1e12 * gpu.compute_share)
        multiply /= of_dense
        total += ((loaded * each / bandwidth) ** OVERLAP + multiply**OVERLAP) ** (1 / OVERLAP)
    return total


def _context_read(shape: ModelShape, full: int, context: Column) -> Column:
    near = np.minimum(context, shape.window)
    return np.asarray(full * context + shape.windowed_layers * near)


def _all_reduce_s(shape: ModelShape, gpu: GPU, tp: int, tokens: Column) -> Column:
    if tp == 1:
        return np.zeros_like(tokens)
    sent = 2 * (tp - 1) / tp * tokens * shape.hidden * 2
    latency_us, share = ALL_REDUCE[gpu.interconnect]
    link = gpu.link_gb_s * 1e9 * LINK_SHARE * share
    return 2 * shape.layers * (latency_us * 1e-6 + sent / link)  # a layer has two all-reduces
