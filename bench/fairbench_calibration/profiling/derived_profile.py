"""Derivation of a timing profile from a model's config and a GPU, without measurements."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.formats import json_objects, parsed
from fairbench.hardware.catalogue import (
    canonical_model,
    derived_errors,
    model_configs,
    profile_ids,
    with_serving,
)
from fairbench.hardware.engine_params import VLLMParams, vllm_limits
from fairbench.hardware.timing import FitDomain, Frontend, KVPool, TimingProfile
from fairbench_calibration.profiling import fit
from fairbench_calibration.profiling.estimates import NoTable, operators_ms, roofline_ms
from fairbench_calibration.profiling.gpus import GPU, find_gpu
from fairbench_calibration.profiling.model_shape import (
    ModelShape,
    check_split,
    quantization_method,
    shape_of,
    vllm_memory,
)

HUB = "https://huggingface.co/{}/resolve/main/config.json"
_WAIT_S = 20.0
_MOST_BYTES = 1 << 20


class ModelConfig(NamedTuple):
    """A model's name in profiles, its ``config.json``, and the source of the config."""

    name: str
    config: Mapping[str, Any]
    source: str


def bundled_models() -> list[str]:
    """Return the names of the models whose config is bundled."""
    return sorted(model_configs())


def model_config(model: str) -> ModelConfig:
    """Return the configuration (``config.json``) of a model.

    Raises UsageError for an unknown model, and DataError for a file that is not a valid JSON
    object.

    Args:
        model: The name of a bundled model, the path of a ``config.json`` or of its folder, or a
            name ``owner/name`` on the Hugging Face hub.
    """
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.suffix == ".json" or path.is_file():
        record = next(json_objects(path, str(path)), None)
        if record is None:
            raise DataError(f"{path}: the file is empty")
        stated = record.value.get("_name_or_path") or path.resolve().parent.name or "model"
        return ModelConfig(canonical_model(str(stated), model_configs()), record.value, str(path))
    name = canonical_model(model, model_configs())
    if name in model_configs():
        found = model_configs()[name]
        return ModelConfig(name, found["config"], f"bundled config of {found['hub']}")
    if model.count("/") == 1 and not model.startswith(("/", ".", "~")):
        return _from_hub(model)
    wrong = unknown_name("model", model, model_configs())
    raise UsageError(
        f"{wrong} For another model, give its name on the hub (owner/name) or a config.json"
    )


def _from_hub(model: str) -> ModelConfig:
    url = HUB.format(model)
    try:
        with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
            config = parsed(answer.read(_MOST_BYTES), url)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"model {model!r}: its config.json cannot be loaded from the hub ({reason}): give the "
            f"path of the file, or a bundled model: {', '.join(bundled_models())}"
        ) from None
    if not isinstance(config, dict):
        raise DataError(f"{url}: the config is not a JSON object")
    return ModelConfig(canonical_model(model, model_configs()), config, url)


# The fit draws ``ITERATIONS`` random engine iterations; ``HELD_OUT`` of them only test the fit.
ITERATIONS, HELD_OUT, SEED = 900, 270, 0
LARGEST_BATCH = 400  # maximum number of decoding sequences in a random iteration
ROOFLINE = "roofline"  # last part of the id of a profile that was computed from a data sheet
HOST_MS = 0.5  # CPU time of the host in an iteration, which operator tables do not include
LEAST_LAYER_MS = 15 / 36  # measured time for launching a layer's prefill kernels on SGLang

FRONTENDS = {
    "sglang": Frontend(request_ms=0.2486, token_ms=0.003, delay_ms=9.913),
    "vllm": Frontend(request_ms=1.5, token_ms=0.003, delay_ms=9.913),
}
"""The times that each engine's HTTP server and tokenizer take (Llama-3.1-8B on an A100)."""


class Derived(NamedTuple):
    """A derived timing profile, with the data of its fit.

    Attributes:
        profile: The derived timing profile.
        source: The origin of the iteration times, as text.
        note: The reason why the operator tables were not used, or "".
        error_pct: Errors of predicted times of the iterations ``held``, in percent.
        held: The held-out iterations, which the fit did not use.
        times_ms: GPU times of the iterations ``held`` in ms, shape (n_iterations,).
    """

    profile: TimingProfile
    source: str
    note: str
    error_pct: dict[str, float]
    held: fit.Iterations
    times_ms: fit.Column


class _Estimate(NamedTuple):
    times_ms: fit.Column
    kind: str
    grade: str
    source: str
    note: str


def derive(
    model: str, gpu: str | GPU, *, tp: int = 1, dtype: str | None = None, engine: str = "sglang",
    roofline: bool = False, kv_dtype: str = "fp16",
) -> Derived:  # fmt: skip
    """Derive the timing profile of a model on ``tp`` GPUs.

    Args:
        model: See ``model_config``.
        gpu: The GPU, or its name.
        tp: Number of GPUs that share the model.
        dtype: Data type of the weights, or None for the data type of the published weights.
        engine: The engine whose kernels are assumed, ``sglang`` or ``vllm``.
        roofline: Whether to use the roofline model instead of the operator tables.
        kv_dtype: Data type of the KV cache, ``fp16`` or ``fp8``.

    Raises UsageError for an unknown name, and for a model that is too large for the GPUs.
    """
    card, described = find_gpu(gpu) if isinstance(gpu, str) else gpu, model_config(model)
    shape = shape_of(described.config, described.source)
    check_split(shape, tp)
    weights = dtype or shape.dtype
    if not weights:
        method = quantization_method(described.config, described.source)
        raise UsageError(
            f"{described.source}: {method}: the bits of a weight are unknown; give --dtype fp16, "
            "fp8 (8 bits) or int4 (4 bits)"
        )
    pool = pool_of(shape, card, tp, weights, kv_dtype)
    most = min(fit.MOST_CONTEXT, pool.tokens(pool.mem_fraction_static))
    it = fit.drawn(ITERATIONS, np.random.default_rng(SEED), most)
    priced = _estimate(described, shape, card, tp, dtype, engine, kv_dtype, it, roofline=roofline)
    kept, held = it.selected(slice(HELD_OUT, None)), it.selected(slice(HELD_OUT))
    found = fit.fitted(kept, priced.times_ms[HELD_OUT:], experts_left=shape.experts_left)
    errors = fit.errors_pct(found, held, priced.times_ms[:HELD_OUT])
    if engine == "sglang":
        found["c_l"] = LEAST_LAYER_MS * shape.layers
    elif priced.kind != ROOFLINE:
        found = with_serving(found, card.name, shape.vocabulary)
    name = described.name if weights == shape.dtype else f"{described.name}-{weights}"
    name += "" if kv_dtype == "fp16" else f"-kv-{kv_dtype}"
    if engine == "vllm":
        pool = replace(pool, vllm=vllm_memory(pool, shape, card.name, tp))
    profile = TimingProfile(
        profile_id=f"{card.name}/{name}/tp{tp}/{priced.kind}",
        coefficients_ms=found,
        host_ms=HOST_MS,
        grade=priced.grade,
        pool=pool,
        frontend=FRONTENDS[engine],
        fit_domain=FitDomain(LARGEST_BATCH, None),
    )
    source = f"{priced.source}; {described.source}, {weights} weights, {kv_dtype} KV cache"
    note = priced.note and priced.note + _better_profiles(f"{card.name}/{name}/tp{tp}/")
    return Derived(profile, source, note, errors, held, priced.times_ms[:HELD_OUT])


def _better_profiles(place: str) -> str:
    names = [name for name in profile_ids() if name.startswith(place) and "roofline" not in name]
    return f". Bundled, and better: --gpu {' or '.join(names)}" if names else ""


def pool_of(shape: ModelShape, gpu: GPU, tp: int, dtype: str, kv_dtype: str = "fp16") -> KVPool:
    """Return the memory for the KV cache (KV pool) of each of ``tp`` GPUs.

    Raises UsageError if the weights leave no memory for the KV cache.
    """
    pool = KVPool(
        pre_load_avail_gib=gpu.pre_load_avail_gib,
        weights_gib=shape.weight_bytes(dtype) / tp / 2**30,
        kv_bytes_per_token=shape.kv_bytes(tp, kv_dtype),
        mem_fraction_static=gpu.mem_fraction_static,
        chunked_prefill_size=gpu.chunked_prefill_size,
        host_gb_s=gpu.host_gb_s,
    )
    usable = gpu.pre_load_avail_gib * gpu.mem_fraction_static
    if pool.weights_gib >= usable:
        raise UsageError(
            f"gpu {gpu.name}: {dtype} weights take {pool.weights_gib:.1f} GiB on each of "
            f"{tp} GPUs, which have {usable:.1f} GiB for weights and KV; give a larger "
            "--tp, or a smaller --dtype"
        )
    return pool


def _estimate(
    described: ModelConfig, shape: ModelShape, gpu: GPU, tp: int, dtype: str | None, engine: str,
    kv_dtype: str, it: fit.Iterations, *, roofline: bool,
) -> _Estimate:  # fmt: skip
    note = ""
    if not roofline:
        try:
            times, release = operators_ms(described.config, gpu, tp, engine, dtype, it, kv_dtype)
        except NoTable as error:
            note = str(error)
        else:
            kind = f"{engine}-{release}"
            grade = f"operators: fitted to measured operators of {kind}, unchecked end to end"
            source = f"aiconfigurator-core operator tables of {engine} {release}"
            return _Estimate(times, kind, grade, source, "")
    times = roofline_ms(shape, gpu, tp, dtype or shape.dtype, it, kv_dtype)
    return _Estimate(times, ROOFLINE, measured_grade(), "roofline of the GPU's data sheet", note)


def measured_grade() -> str:
    """Return the text about the errors of roofline profiles in comparison with measured runs."""
    rows = derived_errors()
    within = sum(row["time_per_token_within_10"] for row in rows)
    worst = max(abs(row["time_per_token_worst_pct"]) for row in rows)
    return (
        f"derived: roofline of data sheet and config; time per token within 10% in {within} of "
        f"{sum(row['runs'] for row in rows)} measured runs on "
        f"{len({row['gpu'] for row in rows})} GPUs, at worst {worst:.0f}% off"
    )


# ``fairbench profile`` prints decode times for ``BATCHES`` sequences of ``CONTEXT`` tokens each.
BATCHES, CONTEXT = (1, 8, 64), 1_000
PROMPTS = (128, 1_024, 8_192)  # prompt lengths (tokens) for which prefill times are printed


def described(
    profile: TimingProfile, source: str, note: str, error_pct: Mapping[str, float]
) -> Iterator[str]:
    """Yield the lines that ``fairbench profile`` prints about a profile."""
    pool = profile.pool
    yield f"profile   {profile.profile_id}"
    yield f"grade     {profile.grade}"
    yield f"source    {source}"
    if note:
        yield f"note      {note}"
    tokens, fraction = pool.tokens(pool.mem_fraction_static), pool.mem_fraction_static
    if pool.vllm is not None:
        tokens = vllm_limits(VLLMParams(), profile).pool_tokens
        fraction = pool.vllm.gpu_memory_utilization
    yield (
        f"KV pool   {tokens:,} tokens of {pool.kv_bytes_per_token:,.0f} bytes on each GPU, beside "
        f"{pool.weights_gib:.1f} GiB of weights (fraction {fraction:g})"
    )
    ms = ", ".join(f"{name} {value:.4g}" for name, value in profile.coefficients_ms.items())
    yield f"fit, ms   {ms}, host {profile.host_ms:g}"
    if error_pct:
        yield (
            f"held out  {error_pct['MAPE']:.1f}% off on average, P95 {error_pct['P95']:.0f}%, "
            f"bias {error_pct['bias']:+.1f}%"
        )
    steps = (f"{n}: {(profile.decode_ps(n, n * CONTEXT) / 1e9):.1f}" for n in BATCHES)
    yield f"decode    ms a step by batch, {CONTEXT:,} tokens of context each: {', '.join(steps)}"
    prompts = (f"{n:,}: {prefill_ms(profile, n):.1f}" for n in PROMPTS)
    yield f"prefill   ms by tokens of a lone prompt, in one iteration: {', '.join(prompts)}"


def prefill_ms(profile: TimingProfile, tokens: int) -> float:
    """Return the milliseconds of an iteration that prefills a single prompt."""
    return profile.prefill_ps([(0, tokens)]) / 1e9
