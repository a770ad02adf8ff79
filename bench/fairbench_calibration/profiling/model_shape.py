"""The shape of a model from a Hugging Face ``config.json``, and the memory that vLLM needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.hardware.timing import KVPool, VLLMMemory

WEIGHT_BYTES = {"fp16": 2.0, "fp8": 1.0, "int4": 0.53, "mxfp4": 0.53}
"""Bytes per weight by data type; in four-bit types, each group of weights also has a scale."""

_NATIVE = {"fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
KV_BYTES = {"fp16": 2, "fp8": 1}
"""Bytes per value in the KV cache, by data type."""


@dataclass(frozen=True)
class Latent:
    """The sizes of the projections in multi-head latent attention (MLA)."""

    kv_rank: int
    query_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: the number of experts, how many a token uses, and their size."""

    count: int
    active: int
    size: int
    shared_size: int
    dense_layers: int


@dataclass(frozen=True)
class ModelShape:
    """The layers of a decoder-only transformer, and the data type of its published weights."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool
    dtype: str
    latent: Latent | None = None
    experts: Experts | None = None
    windowed_layers: int = 0
    window: int = 0

    @property
    def attention_weights(self) -> int:
        """The number of attention weights in one layer."""
        if (latent := self.latent) is None:
            return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        key_dim = latent.nope_dim + latent.rope_dim
        queries = self.heads * key_dim
        queries *= self.hidden if not latent.query_rank else latent.query_rank
        queries += self.hidden * latent.query_rank
        keys = self.hidden * (latent.kv_rank + latent.rope_dim)
        keys += latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return queries + keys + self.heads * latent.value_dim * self.hidden

    def mlp_weights(self, experts_used: float) -> float:
        """Return the number of weights in all MLP layers, each with ``experts_used`` experts."""
        gated = 3 * self.hidden
        if (moe := self.experts) is None:
            return self.layers * gated * self.mlp
        routed = experts_used * gated * moe.size + gated * moe.shared_size
        sparse = self.layers - moe.dense_layers
        return moe.dense_layers * gated * self.mlp + sparse * (routed + self.hidden * moe.count)

    @property
    def output_weights(self) -> int:
        """The number of weights in the output layer, which are stored with 16 bits."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> float:
        """The total number of weights in the model."""
        tables = self.output_weights * (1 if self.tied else 2)
        every = self.experts.count if self.experts else 0
        return self.layers * self.attention_weights + self.mlp_weights(every) + tables

    @property
    def active_parameters(self) -> float:
        """The number of weights that are used to compute one token."""
        used = self.experts.active if self.experts else 0
        return self.layers * self.attention_weights + self.mlp_weights(used) + self.output_weights

    @property
    def experts_left(self) -> float:
        """The fraction of experts that a token does not use, or 0 for a dense model."""
        return 1 - self.experts.active / self.experts.count if self.experts else 0.0

    def weight_bytes(self, dtype: str) -> float:
        """Return the size of all weights in bytes.

        With ``mxfp4``, only the experts are quantized.
        """
        each = WEIGHT_BYTES[dtype]
        attention = 2.0 if dtype == "mxfp4" else each
        every = self.experts.count if self.experts else 0
        tables = self.output_weights * (1 if self.tied else 2)
        linear = self.layers * self.attention_weights * attention + self.mlp_weights(every) * each
        return linear + tables * 2

    def kv_bytes(self, tp: int, dtype: str = "fp16") -> int:
        """Return the bytes of a token's KV cache on each of ``tp`` GPUs.

        The latent KV cache of MLA models has equal size on every GPU. Layers with a sliding window
        are counted as if they had full attention.
        """
        each = KV_BYTES[dtype]
        if self.latent is not None:
            return self.layers * (self.latent.kv_rank + self.latent.rope_dim) * each
        return 2 * self.layers * max(1, self.kv_heads // tp) * self.head_dim * each


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Return the model shape that a ``config.json`` describes.

    Raises DataError, whose message begins with ``where``, if a field is missing or wrong.
    """
    config = config.get("text_config") or config
    heads = _positive_count(config, "num_attention_heads", where)
    hidden = _positive_count(config, "hidden_size", where)
    layers = _positive_count(config, "num_hidden_layers", where)
    window = config.get("sliding_window") or 0
    kinds = config.get("layer_types")
    windowed = kinds.count("sliding_attention") if isinstance(kinds, list) else 0
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_positive_count(config, "num_key_value_heads", where, heads),
        head_dim=_positive_count(config, "head_dim", where, hidden // heads),
        mlp=_positive_count(config, "intermediate_size", where),
        vocabulary=_positive_count(config, "vocab_size", where),
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=native_dtype(config),
        latent=_latent_attention(config, where),
        experts=_expert_layers(config, where),
        windowed_layers=windowed if window else 0,
        window=window if windowed else 0,
    )


def native_dtype(config: Mapping[str, Any]) -> str:
    """Return the data type of the published weights, which is 16 bits by default."""
    method = (config.get("quantization_config") or {}).get("quant_method", "")
    return _NATIVE.get(str(method).lower(), "fp16")


def check_split(shape: ModelShape, tp: int) -> None:
    """Raise UsageError if engines cannot split the model over ``tp`` GPUs."""
    if tp < 1 or shape.heads % tp:
        allowed = [str(n) for n in (1, 2, 4, 8, 16) if not shape.heads % n]
        raise UsageError(
            f"--tp {tp}: must divide the {shape.heads} attention heads: {', '.join(allowed)}"
        )


def _latent_attention(config: Mapping[str, Any], where: str) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        kv_rank=_positive_count(config, "kv_lora_rank", where),
        query_rank=config.get("q_lora_rank") or 0,
        rope_dim=_positive_count(config, "qk_rope_head_dim", where),
        nope_dim=_positive_count(config, "qk_nope_head_dim", where),
        value_dim=_positive_count(config, "v_head_dim", where),
    )


def _expert_layers(config: Mapping[str, Any], where: str) -> Experts | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((config[name] for name in names if config.get(name)), 0)
    if not count:
        return None
    mlp = _positive_count(config, "intermediate_size", where)
    size = _positive_count(config, "moe_intermediate_size", where, mlp)
    shared = (config.get("n_shared_experts") or 0) * size
    return Experts(
        count=count,
        active=_positive_count(config, "num_experts_per_tok", where),
        size=size,
        shared_size=config.get("shared_expert_intermediate_size") or shared,
        dense_layers=config.get("first_k_dense_replace") or 0,
    )


def _positive_count(
    config: Mapping[str, Any], key: str, where: str, usual: int | None = None
) -> int:
    value = config.get(key)
    value = usual if value is None else value
    if value is None:
        raise DataError(f"{where}: {key}: missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{where}: {key} = {value!r}: must be a positive integer")
    return value


TOTAL_GIB = {
    "a10g-24gb": 22.06,
    "rtx4090-24gb": 23.52,
    "a40-48gb": 44.43,
    "l40s-48gb": 44.40,
    "a100-80gb": 79.25,
    "h100-80gb": 79.19,
    "h200-141gb": 139.8,
}
"""Total memory in GiB of each GPU, as PyTorch reports it in public logs."""

_LOGIT_BYTES = 2 + 4 + 4  # bytes of two logits (16 and 32 bits) and a probability
_ACTIVATION_BYTES = 2


UTILIZATION = 0.92  # default gpu_memory_utilization of vLLM 0.32.0 (``vllm/config/cache.py``)


def vllm_memory(
    pool: KVPool, shape: ModelShape, gpu: str, tp: int, utilization: float = UTILIZATION
) -> VLLMMemory:
    """Return the memory that a vLLM server uses besides weights and KV cache.

    Args:
        pool: The GPU's free memory, and the memory that the weights take.
        shape: The model's shape.
        gpu: Name of the GPU.
        tp: Number of GPUs that share the model.
        utilization: vLLM's ``gpu_memory_utilization``.
    """
    hidden_bytes = shape.hidden * _ACTIVATION_BYTES
    return VLLMMemory(
        total_gib=TOTAL_GIB.get(gpu, pool.pre_load_avail_gib),
        gpu_memory_utilization=utilization,
        # A forward pass holds two hidden tensors, and the MLP's gate, up and activation tensors.
        forward_bytes=2 * hidden_bytes + 3 * shape.mlp / tp * _ACTIVATION_BYTES,
        hidden_bytes=hidden_bytes,
        logits_bytes=shape.vocabulary * _LOGIT_BYTES,
    )
