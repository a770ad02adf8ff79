"""The shape of a model from a Hugging Face ``config.json``, and the memory that vLLM needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.hardware.timing import KVPool, VLLMMemory

WEIGHT_BYTES = {"fp16": 2.0, "fp8": 1.0, "int4": 0.53, "mxfp4": 0.53}
"""Bytes per weight by data type; in four-bit types, each group of weights also has a scale."""

_OF_BITS = {"4": "int4", "8": "fp8", "16": "fp16"}
# methods and algorithms of quantization whose names contain the number of bits of a weight
_OF_NAME = re.compile(r"(?P<int4>w4|int4|fp4|awq|gptq)|(?P<fp8>w8|int8|fp8)")
# types of models whose MLP layers have two matrices: up and down, without a gate
_UNGATED = {
    *("apertus", "arcee", "codegen", "falcon", "gpt_neox", "nemotron", "opt", "persimmon", "phi"),
    "starcoder2",
}
_MLP, _FIRST_DENSE = "intermediate_size", "first_k_dense_replace"
# keys of the number n if only every n-th layer is a mixture of experts
_STEPS = ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq")
# keys of models that mix attention with layers whose memory and time are not known here
_HYBRID = ("hybrid_override_pattern", "linear_attn_config", "mamba_d_state")
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
    """The layers of a decoder-only transformer, and the data type of its published weights.

    ``dtype`` is "" if the config does not tell the data type. ``linear_layers`` is the number of
    layers with linear attention, which have no KV cache; their weights are counted as if they had
    full attention.
    """

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
    linear_layers: int = 0
    gated: bool = True

    @property
    def mlp_matrices(self) -> int:
        """The number of matrices in an MLP: up and down, and the gate of a gated MLP."""
        return 3 if self.gated else 2

    @property
    def cached_layers(self) -> int:
        """The number of layers with a KV cache."""
        return self.layers - self.linear_layers

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
        row = self.mlp_matrices * self.hidden
        if (moe := self.experts) is None:
            return self.layers * row * self.mlp
        routed = experts_used * row * moe.size + row * moe.shared_size
        sparse = self.layers - moe.dense_layers
        return moe.dense_layers * row * self.mlp + sparse * (routed + self.hidden * moe.count)

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
            return self.cached_layers * (self.latent.kv_rank + self.latent.rope_dim) * each
        return 2 * self.cached_layers * max(1, self.kv_heads // tp) * self.head_dim * each


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Return the model shape that a ``config.json`` describes.

    Raises DataError, whose message begins with ``where``, if a field is missing or wrong.
    """
    dtype = native_dtype(config, where)
    config = _table(config, "text_config", where) or config
    heads = _positive_count(config, "num_attention_heads", where)
    hidden = _positive_count(config, "hidden_size", where)
    layers = _positive_count(config, "num_hidden_layers", where)
    kv_heads = _positive_count(config, "num_key_value_heads", where, heads)
    _check_limit(where, "num_key_value_heads", kv_heads, "num_attention_heads", heads)
    kinds = _layer_kinds(config, where, layers)
    windowed = kinds.count("sliding_attention")
    window = _count_or_zero(config, "sliding_window", where) if windowed else 0
    tied = config.get("tie_word_embeddings") or False
    if not isinstance(tied, bool):
        raise DataError(f"{where}: tie_word_embeddings = {tied!r}: must be true or false")
    dense_mlp = "intermediate_size_mlp" if config.get("intermediate_size_mlp") else _MLP
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_positive_count(config, "head_dim", where, hidden // heads),
        mlp=_positive_count(config, dense_mlp, where),
        vocabulary=_positive_count(config, "vocab_size", where),
        tied=tied,
        dtype=dtype,
        latent=_latent_attention(config, where),
        experts=_expert_layers(config, where, layers),
        windowed_layers=windowed if window else 0,
        window=window,
        linear_layers=kinds.count("linear_attention"),
        gated=config.get("model_type") not in _UNGATED,
    )


def native_dtype(config: Mapping[str, Any], where: str) -> str:
    """Return the data type of the published weights, or "" if the config does not tell it.

    Without a ``quantization_config``, weights have 16 bits. A type of 8 bits counts as ``fp8``.
    """
    found = _quantization(config, where)
    if not found:
        return "fp16"
    method = str(found.get("quant_method", "")).lower()
    if method == "mxfp4":
        return method
    if bits := {*_weight_bits(found, where)}:
        return _OF_BITS.get(bits.pop(), "") if len(bits) == 1 else ""
    name = _OF_NAME.search(str(found.get("quant_algo") or method).lower())
    return str(name.lastgroup) if name else ""


def quantization_method(config: Mapping[str, Any], where: str) -> str:
    """Return the ``quant_method`` of a config, for messages."""
    return (
        f"quantization_config.quant_method = {_quantization(config, where).get('quant_method')!r}"
    )


def _quantization(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    tables = (_table(config, "text_config", where), config)
    keys = ("quantization_config", "compression_config")
    return next((one for table in tables for key in keys if (one := _table(table, key, where))), {})


def _weight_bits(quantization: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield the numbers of bits of a weight that a ``quantization_config`` states."""
    for key in ("bits", "w_bit"):
        if quantization.get(key):
            yield str(quantization[key])
    for bits in ("4", "8"):
        if quantization.get(f"load_in_{bits}bit") is True:
            yield bits
    groups = _table(quantization, "config_groups", where)
    for group in groups:
        if found := _table(_table(groups, group, where), "weights", where).get("num_bits"):
            yield str(found)


def _table(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return a table of the config, which is empty if the key is missing or null."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: {key} = {value!r}: must be a table (JSON object)")
    return value


def _layer_kinds(config: Mapping[str, Any], where: str, layers: int) -> list[str]:
    """Return the kind of attention of each layer, or an empty list if all have full attention."""
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise DataError(f"{where}: layer_types = {kinds!r}: must be a list")
    hybrid = next((key for key in _HYBRID if config.get(key)), "")
    if hybrid and not kinds:
        raise DataError(f"{where}: {hybrid}: only layers with attention are supported")
    if isinstance(types := config.get("attn_type_list"), list) and not kinds:
        kinds = [f"{'full' if full else 'linear'}_attention" for full in types]
    for kind in kinds:
        if not str(kind).endswith("attention"):
            raise DataError(
                f"{where}: layer_types: {kind!r}: only layers with attention are supported"
            )
    interval = _count_or_zero(config, "full_attention_interval", where)
    if kinds or not interval:
        return kinds[:layers]
    linear = layers - layers // interval
    return ["linear_attention"] * linear + ["full_attention"] * (layers - linear)


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
        query_rank=_count_or_zero(config, "q_lora_rank", where),
        rope_dim=_positive_count(config, "qk_rope_head_dim", where),
        nope_dim=_positive_count(config, "qk_nope_head_dim", where),
        value_dim=_positive_count(config, "v_head_dim", where),
    )


def _expert_layers(config: Mapping[str, Any], where: str, layers: int) -> Experts | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    name = next((name for name in names if config.get(name)), "")
    if not name:
        return None
    count = _positive_count(config, name, where)
    active = _positive_count(config, "num_experts_per_tok", where)
    _check_limit(where, "num_experts_per_tok", active, name, count)
    size = _positive_count(
        config, "moe_intermediate_size", where, _positive_count(config, _MLP, where)
    )
    shared = _count_or_zero(config, "n_shared_experts", where)
    if config.get("model_type") == "llama4_text":
        shared = 1
    return Experts(
        count=count,
        active=active,
        size=size,
        shared_size=_count_or_zero(config, "shared_expert_intermediate_size", where)
        or shared * size,
        dense_layers=layers - _sparse_layers(config, where, layers),
    )


def _sparse_layers(config: Mapping[str, Any], where: str, layers: int) -> int:
    """Return the number of layers that are mixtures of experts."""
    if isinstance(kinds := config.get("moe_layer_freq"), list):
        return sum(map(bool, kinds[:layers]))
    first = _count_or_zero(config, _FIRST_DENSE, where)
    _check_limit(where, _FIRST_DENSE, first, "num_hidden_layers", layers)
    step = max(_count_or_zero(config, key, where) for key in _STEPS)
    return (layers - first) // (step or 1)


def _check_limit(where: str, key: str, value: int, limit_key: str, limit: int) -> None:
    if value > limit:
        raise DataError(f"{where}: {key} = {value}: must be at most {limit}, the {limit_key}")


def _count_or_zero(config: Mapping[str, Any], key: str, where: str) -> int:
    """Return a count that is 0 if the key is missing, null, 0 or false."""
    return _positive_count(config, key, where) if config.get(key) else 0


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
        forward_bytes=2 * hidden_bytes + shape.mlp_matrices * shape.mlp / tp * _ACTIVATION_BYTES,
        hidden_bytes=hidden_bytes,
        logits_bytes=shape.vocabulary * _LOGIT_BYTES,
    )
