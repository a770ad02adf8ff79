"""Times of iterations, from operator tables or by a roofline.

The tables are those of the optional ``aiconfigurator-core``: NVIDIA measured the operators on the
named GPU, and how they add up to an iteration is that package's model.

By the roofline, an iteration reads its weights and its KV once and multiplies; products and reads
of a layer overlap, layers follow each other. The shares of the peaks are typical of measured
kernels, not measured on the GPU at hand.
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

from fairbench.hardware.gpus import GPU
from fairbench.hardware.model_shape import WEIGHT_BYTES, ModelShape
from fairbench.profiling.fit import Column, Iterations

PACKAGE = "aiconfigurator_core"
_BF16 = {"activation_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
_WEIGHTS = {
    "fp16": {"weight_dtype": "bfloat16", "moe_dtype": "bfloat16"},
    "fp8": {"weight_dtype": "fp8_block", "moe_dtype": "fp8_block"},
    "int4": {"weight_dtype": "int4", "moe_dtype": "int4"},
}


class NoTable(Exception):
    """The tables lack the GPU, or an operator of the model on this GPU."""


def operators_ms(
    config: Mapping[str, Any], gpu: GPU, tp: int, engine: str, dtype: str | None, it: Iterations
) -> tuple[Column, str]:
    """Return the milliseconds of each iteration, and the measured engine release.

    Args:
        config: The model's ``config.json``.
        gpu: The GPU.
        tp: GPUs that share the model.
        engine: ``sglang`` or ``vllm``.
        dtype: Of the weights, or None for the config's own.
        it: The iterations.

    Raises NoTable.
    """
    if find_spec(PACKAGE) is None:
        raise NoTable("aiconfigurator-core is not installed: pip install '.[profile]'")
    if gpu.system is None:
        raise NoTable(f"the operator tables have no {gpu.name}")
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
        for kv in (_BF16, {}):  # the tables of some GPUs have latent attention in 8 bits only
            try:
                model = RustForwardPassPerfModel.from_native(given | kv)
                times = [_estimate(model, row) for row in zip(*it, strict=True)]
            except Exception as error:  # the package raises the errors of its parts
                missing = missing or " ".join(str(error).split()).partition(" at /")[0]
                continue
            return np.array(times), str(resolve_query_version(gpu.system, engine, "current"))
        raise NoTable(f"the operator tables lack a part: {missing[:160]}")


def _estimate(model: Any, row: tuple[float, ...]) -> float:
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
    """Silence the package's log of its fallbacks."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


COMPUTE_SHARE, ATTENTION_SHARE, MEMORY_SHARE = 0.70, 0.50, 0.80  # of the peaks
LAYER_US = 25.0  # launches, norms and activations of a layer, in a CUDA graph
EXPERT_SHARE = 0.60  # of the peak, products of small experts
ALL_REDUCE_US = 12.0  # before a byte is sent, two a layer
MS = 1e3


def roofline_ms(shape: ModelShape, gpu: GPU, tp: int, dtype: str, it: Iterations) -> Column:
    """Return the milliseconds of each iteration on each of ``tp`` GPUs."""
    bandwidth = gpu.memory_gb_s * 1e9 * MEMORY_SHARE
    linear = _linear_s(shape, gpu, dtype, it.tokens, bandwidth) / tp
    attention = _attention_s(shape, gpu, tp, it, bandwidth)
    fixed = shape.layers * LAYER_US * 1e-6
    return np.asarray(MS * (linear + attention + fixed + _all_reduce_s(shape, gpu, tp, it.tokens)))


def _attention_s(shape: ModelShape, gpu: GPU, tp: int, it: Iterations, bandwidth: float) -> Column:
    """Return the time of attention: products of prefills, and reading all contexts' KV."""
    full = shape.layers - shape.windowed_layers
    heads, latent = shape.heads / tp, shape.latent
    pair = (
        4 * shape.head_dim
        if latent is None
        else 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim)
    )
    near = np.minimum(it.attended, it.new * shape.window)
    pairs = full * it.attended + shape.windowed_layers * near
    multiply = it.prefills * pairs * heads * pair / (gpu.bf16_tflops * 1e12 * ATTENTION_SHARE)
    layer_bytes = shape.kv_bytes(tp) / shape.layers
    read = _read(shape, full, it.context) * it.decodes + _read(shape, full, it.prefix) * it.prefills
    return np.asarray(multiply + read * layer_bytes / bandwidth)


def _linear_s(shape: ModelShape, gpu: GPU, dtype: str, tokens: Column, bandwidth: float) -> Column:
    """Return the time of linear layers: reading weights or multiplying, if longer."""
    dense_bytes = 2.0 if dtype == "mxfp4" else WEIGHT_BYTES[dtype]
    attention = shape.layers * shape.attention_weights
    used = shape.experts.active if shape.experts else 0
    active = shape.mlp_weights(used)
    read = active if shape.experts is None else _mlp_read(shape, tokens)
    share = COMPUTE_SHARE if shape.experts is None else EXPERT_SHARE
    total = np.zeros_like(tokens)
    for weights, loaded, each, of_peak in (
        (attention, attention, dense_bytes, COMPUTE_SHARE),
        (active, read, WEIGHT_BYTES[dtype], share),
        (shape.output_weights, shape.output_weights, 2.0, COMPUTE_SHARE),
    ):
        peak = gpu.fp8_tflops if each == WEIGHT_BYTES["fp8"] and gpu.fp8_tflops else gpu.bf16_tflops
        multiply = 2 * weights * tokens / (peak * 1e12 * of_peak)
        total += np.maximum(loaded * each / bandwidth, multiply)
    return total


def _mlp_read(shape: ModelShape, tokens: Column) -> Column:
    """Return the MLP weights read, with each expert that some token chooses."""
    moe = shape.experts
    assert moe is not None
    none, every = shape.mlp_weights(0), shape.mlp_weights(moe.count)
    return np.asarray(none + (every - none) * (1 - shape.experts_left**tokens))


def _read(shape: ModelShape, full: int, context: Column) -> Column:
    near = np.minimum(context, shape.window)
    return np.asarray(full * context + shape.windowed_layers * near)


def _all_reduce_s(shape: ModelShape, gpu: GPU, tp: int, tokens: Column) -> Column:
    if tp == 1:
        return np.zeros_like(tokens)
    sent = 2 * (tp - 1) / tp * tokens * shape.hidden * 2
    return 2 * shape.layers * (ALL_REDUCE_US * 1e-6 + sent / (gpu.link_gb_s * 1e9 * MEMORY_SHARE))
