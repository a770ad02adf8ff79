"""A roofline: times of iterations from a data sheet and a model's shape.

An iteration reads its weights and its KV once and multiplies; within a layer, products and reads
overlap, and layers run one after another. The fractions of the peaks are typical of measured
kernels, not measured on this GPU.
"""

from __future__ import annotations

import numpy as np

from fairbench.hardware.gpus import GPU
from fairbench.hardware.model_shape import WEIGHT_BYTES, ModelShape
from fairbench.profiling.fit import Column, Iterations

COMPUTE_SHARE, ATTENTION_SHARE, MEMORY_SHARE = 0.70, 0.50, 0.80  # fractions of the peaks
LAYER_US = 25.0  # launches, norms and activations of a layer, in a CUDA graph
EXPERT_SHARE = 0.60  # fraction of the peak for products of small experts
ALL_REDUCE_US = 12.0  # latency before a byte is sent, twice per layer
MS = 1e3


def roofline_ms(shape: ModelShape, gpu: GPU, tp: int, dtype: str, it: Iterations) -> Column:
    """Return the milliseconds of each iteration on each of ``tp`` GPUs."""
    bandwidth = gpu.memory_gb_s * 1e9 * MEMORY_SHARE
    linear = _linear_s(shape, gpu, dtype, it.tokens, bandwidth) / tp
    attention = _attention_s(shape, gpu, tp, it, bandwidth)
    fixed = shape.layers * LAYER_US * 1e-6
    return np.asarray(MS * (linear + attention + fixed + _all_reduce_s(shape, gpu, tp, it.tokens)))


def _attention_s(shape: ModelShape, gpu: GPU, tp: int, it: Iterations, bandwidth: float) -> Column:
    """Return the time of attention: products of prefills, and the reads of all contexts' KV."""
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
    """Return the time of linear layers: reading weights or multiplying, whichever takes longer."""
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
    """Return the number of MLP weights that are read, with each expert that some token chooses."""
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
