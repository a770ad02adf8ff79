"""The catalogue of timing profiles, which are bundled or read from TOML files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairbench.errors import DataError, UsageError, of_file, unknown_name, validated
from fairbench.files.formats import read_toml
from fairbench.files.reader import digest as digest_of
from fairbench.hardware.timing import FitDomain, Frontend, KVPool, TimingProfile

SUFFIX = ".toml"
FILE = "file:"
"""If a profile was read from a file, the last part of the profile's id begins with ``FILE``."""

_DIGEST_LETTERS = 12
_PARALLEL = re.compile(r"tp[1-9][0-9]{0,2}")
_GPU_KEYS = {"memory_gb", "memory_gb_s", "bf16_tflops"}
_OTHER_GPUS = {"a10", "h20", "l4", "l40"}
"""GPUs without bundled profiles whose names are the beginnings of other GPUs' names."""

_ONLY_KNOWN = ConfigDict(extra="forbid", frozen=True)

Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[float, Field(ge=0, lt=1e12)]


class _Coefficients(BaseModel):
    """The coefficients of a ``TimingProfile``, named like the symbols in its formula."""

    model_config = _ONLY_KNOWN

    c0: Amount
    c_w: Amount
    c_T: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    p: Annotated[float, Field(ge=1, lt=1e12)]
    c_A: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    c_K: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    c_npf: Amount
    c_nd: Amount
    c_pf: Amount | None = None
    c_l: Amount | None = None
    c_lp: Amount | None = None
    c_tail: Amount | None = None
    c_e: Amount | None = None
    q_e: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.c_e is None) != (self.q_e is None):
            raise ValueError("c_e and q_e must be given together")
        return self


class _ProfileTable(BaseModel):
    model_config = _ONLY_KNOWN

    profile: Text
    grade: Text
    source: str = ""
    host_ms: Amount = 0.0
    coefficients_ms: _Coefficients
    pool: KVPool
    frontend_ms: Frontend = Frontend()
    fit_domain: FitDomain | None = None
    heldout_error_pct: dict[str, float] = {}


_KNOWN = (
    *_ProfileTable.model_fields,
    *(f"coefficients_ms.{name}" for name in _Coefficients.model_fields),
)


def read_profile(gpu: str) -> TimingProfile:
    """Return the profile in a TOML file, given the file's path or the profile's id.

    The profile's id contains the file's path and digest, so that a stored experiment detects a
    changed file. Raises DataError if the file is not a valid profile, and UsageError if the file's
    digest has changed.
    """
    path, _, digest = gpu.rpartition(f"/{FILE}")[2].partition("@")
    data = read_toml(Path(path), path)
    if _GPU_KEYS & data.keys() and "profile" not in data:
        raise DataError(f"{path}: describes a GPU, not a timing profile: {_how_to_make(path)}")
    found = digest_of(Path(path), path)[:_DIGEST_LETTERS]
    if digest and digest != found:
        raise UsageError(
            f"gpu {path}: the file has changed since the experiment was stored (digest "
            f"{digest}, now {found}); give --gpu {path} to use the changed file"
        )
    profile = profile_of_table(data, path)
    place = profile.profile_id.split("/")
    if len(place) != 4 or not _PARALLEL.fullmatch(place[2]):
        raise DataError(
            f"{path}: profile = {profile.profile_id!r}: must be GPU/MODEL/tpN/SOURCE, with N from "
            "1 to 999"
        )
    return replace(profile, profile_id="/".join([*place[:3], f"{FILE}{path}@{found}"]))


def profile_of_table(data: Mapping[str, Any], where: str) -> TimingProfile:
    """Return the timing profile that a table describes.

    Raises DataError, whose message names the invalid key.
    """
    with of_file(where, _KNOWN):
        found = validated(_ProfileTable, data)
    return TimingProfile(
        profile_id=found.profile,
        coefficients_ms=found.coefficients_ms.model_dump(exclude_none=True),
        host_ms=found.host_ms,
        grade=found.grade,
        pool=found.pool,
        frontend=found.frontend_ms,
        fit_domain=found.fit_domain,
    )


def table_of(profile: TimingProfile, source: str, error_pct: Mapping[str, float]) -> dict[str, Any]:
    """Return the profile as a table for ``profile_of_table``, rounded to six digits."""
    pool = profile.pool
    table: dict[str, Any] = {
        "profile": profile.profile_id,
        "grade": profile.grade,
        "source": source,
        "host_ms": _rounded(profile.host_ms),
        "coefficients_ms": {k: _rounded(v) for k, v in profile.coefficients_ms.items()},
        "pool": {
            k: _rounded(v) for k, v in asdict(replace(pool, vllm=None)).items() if v is not None
        },
    }
    if pool.vllm is not None:
        table["pool"]["vllm"] = {k: _rounded(v) for k, v in asdict(pool.vllm).items()}
    if profile.frontend != Frontend():
        table["frontend_ms"] = {k: _rounded(v) for k, v in asdict(profile.frontend).items()}
    if profile.fit_domain is not None:
        domain = asdict(profile.fit_domain)
        table["fit_domain"] = {k: v for k, v in domain.items() if v is not None}
    if error_pct:
        table["heldout_error_pct"] = dict(error_pct)
    return table


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


# ``SAME_SHAPE`` maps a model to a model with weights of the same shapes, and therefore with the
# same iteration times.
SAME_SHAPE = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-2-7b-chat": "llama-2-7b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
}
_TUNING = re.compile(r"-(instruct|chat|base|thinking|hf|it|bf16|fp16|v\d+\.\d+|\d{4})$")
_GLUED = re.compile(r"^(llama|qwen)(\d)")


def canonical_model(name: str, known: Iterable[str]) -> str:
    """Return the known model to which a name refers, or the normalised name of an unknown model.

    The organisation, ``Meta-``, endings such as ``-Instruct``, and upper case in a model's name are
    ignored. The normalised name of ``meta-llama/Llama-3.1-70B-Instruct`` is ``llama-3.1-70b``.
    Models with layers of equal sizes share a timing profile.
    """
    models = set(known)
    text = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    # Names of Qwen models have no hyphen before the version number, but names of Llama models do.
    for spelled in (text, _GLUED.sub(r"\1-\2", text)):
        while True:
            if spelled in models:
                return spelled
            if SAME_SHAPE.get(spelled) in models:
                return SAME_SHAPE[spelled]
            if (shorter := _TUNING.sub("", spelled)) == spelled:
                break
            spelled = shorter
    return text


DERIVED = "derived_profiles.json"
"""The file with the bundled profiles that ``fairbench profile`` derived."""

MEASURED = "/measured-sglang"
"""The suffix of the ids of profiles that were fitted to measurements of an SGLang server."""


@cache
def _load_json(name: str) -> dict[str, Any]:
    text = (files("fairbench.hardware") / "profiles" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def _derived() -> dict[str, Any]:
    return {one["profile"]: one for one in _load_json(DERIVED)["profiles"]}


def profile_ids() -> list[str]:
    """Return the ids of all bundled timing profiles, in the form ``gpu/model/tp/source``."""
    return sorted([*_load_json("engine_profiles.json")["profiles"], *_derived()])


def model_configs() -> dict[str, Any]:
    """Return the bundled models with their Hugging Face names and their ``config.json``."""
    models: dict[str, Any] = _load_json("model_configs.json")["models"]
    return models


def derived_errors() -> list[dict[str, Any]]:
    """Return the errors of derived profiles on measured runs, by engine, GPU and model."""
    rows: list[dict[str, Any]] = _load_json("derived_errors.json")["rows"]
    return rows


def is_profile_file(gpu: str) -> bool:
    """Return whether ``gpu`` is a profile file, or the id of a profile from a file."""
    return gpu.endswith(SUFFIX) or f"/{FILE}" in gpu


def is_known(profile_id: str) -> bool:
    """Return whether the profile is bundled, or its TOML file is readable and unchanged."""
    if not is_profile_file(profile_id):
        return profile_id in profile_ids()
    try:
        read_profile(profile_id)
    except UsageError:
        return False
    return True


def named_profile(name: str) -> TimingProfile:
    """Return the timing profile with the id ``name``, or the profile in the file ``name``.

    Raises UsageError for an unknown timing profile.
    """
    if not is_profile_file(name) and name not in profile_ids():
        raise unknown_name("profile", name, profile_ids())
    return load_profile(name)


def model_names() -> list[str]:
    """Return the models for which a profile exists."""
    return sorted({name.split("/")[1] for name in profile_ids()})


def resolve_profile(gpu: str, model: str) -> TimingProfile:
    """Return the profile of a GPU (a prefix of a profile id, or a TOML file) and a model.

    ``model`` is a model's name in a profile id or on the Hugging Face hub. If several profiles
    match, the profile with the lowest TP degree is chosen. Among profiles with equal TP degrees, a
    profile fitted to measured serving is preferred, and otherwise a profile for SGLang. Raises
    UsageError for an unknown GPU or model, and for a prefix that fits several GPUs.
    """
    if is_profile_file(gpu):
        return read_profile(gpu)
    ids = profile_ids()
    model = known_model(model)
    matching = [name for name in ids if name.startswith(gpu.lower())]
    if not matching or gpu.lower() in _OTHER_GPUS:
        unknown = unknown_name("gpu", gpu, {name.split("/")[0] for name in ids})
        raise UsageError(f"{unknown} For another GPU, {_how_to_make(gpu)}")
    of_model = [name for name in matching if name.split("/")[1] == model]
    if not of_model:
        models = ", ".join(sorted({name.split("/")[1] for name in matching}))
        raise UsageError(f"gpu {gpu!r} has no profile for model {model!r}: choose from {models}")
    if len({name.split("/")[0] for name in of_model}) > 1:
        gpus = ", ".join(sorted({name.split("/")[0] for name in of_model}))
        raise UsageError(f"gpu {gpu!r} is ambiguous: choose from {gpus}")
    lowest = min(map(_tp_degree, of_model))
    usual = [name for name in of_model if _tp_degree(name) == lowest]
    served = [name for name in usual if name.endswith(MEASURED)]
    preferred = served or [name for name in usual if "/sglang" in name] or usual
    if len(preferred) > 1:
        raise UsageError(f"gpu {gpu!r} is ambiguous: choose from {', '.join(preferred)}")
    return load_profile(preferred[0])


def _how_to_make(gpu: str) -> str:
    option = "--gpu-spec" if gpu.endswith((SUFFIX, ".json")) else "--gpu"
    return (
        f"make a profile with `fairbench profile MODEL {option} {gpu} -o PROFILE.toml`, "
        "then give --gpu PROFILE.toml"
    )


def known_model(model: str) -> str:
    """Return a model's name in the catalogue of models. Raises UsageError for an unknown model."""
    found = canonical_model(model, model_names())
    if found not in model_names():
        raise unknown_name("model", model, model_names())
    return found


def _tp_degree(profile_id: str) -> int:
    return int(profile_id.split("/")[2].removeprefix("tp"))


# Operator tables give the times of single GPU operations. Servers on an H100 need 10% more time for
# the linear layers than in operator tables, and additional time for sampling.

HOPPER_GB_S = {"h100-80gb": 3_350, "gh200-96gb": 4_000, "h200-141gb": 4_800}
"""GPUs with the H100's chip, with their memory bandwidths in 10^9 bytes/s."""

LINEAR_FACTOR = 1.10
"""The time of linear layers (c_T) in a server on an H100, divided by their time in operator tables.

``LINEAR_FACTOR`` is 1.10 in SGLang with Llama-3.1-8B (``measured-sglang-triton``) and 1.09 in vLLM
with Qwen3-14B (``measured-vllm``). For 28,650 tokens on an H100, a published TTFT of 1,077 ms is
1.10 times the sum of operator times (976 ms).
"""

SAMPLING_MS, SAMPLING_VOCABULARY = 0.012, 151_936
"""vLLM's sampling time (ms) per sequence of a step on an H100, and the model's vocabulary size.

The sampling time was measured with Qwen3-14B (profile ``measured-vllm``). Sampling by ``top_p``
probably moves all logits through memory. The sampling time is assumed proportional to the
vocabulary size divided by the memory bandwidth.
"""


def with_serving(
    coefficients_ms: Mapping[str, float], gpu: str, vocabulary: int
) -> dict[str, float]:
    """Return operator coefficients plus a server's extra time for linear layers and sampling.

    Args:
        coefficients_ms: Coefficients of a ``TimingProfile``.
        gpu: Name of the GPU. Coefficients of GPUs other than Hopper GPUs are returned unchanged.
        vocabulary: Size of the model's vocabulary, in tokens.
    """
    found = dict(coefficients_ms)
    if gpu in HOPPER_GB_S:
        slower = HOPPER_GB_S["h100-80gb"] / HOPPER_GB_S[gpu]
        sampling_ms = SAMPLING_MS * vocabulary / SAMPLING_VOCABULARY * slower
        found["c_T"] *= LINEAR_FACTOR
        found["c_nd"] = max(found["c_nd"], sampling_ms)
    return found


def load_profile(profile_id: str) -> TimingProfile:
    """Return the profile with this id, including the KV pool of its GPU, model and TP degree."""
    if is_profile_file(profile_id):
        return read_profile(profile_id)
    if profile_id in _derived():
        return profile_of_table(_derived()[profile_id], DERIVED)
    data = _load_json("engine_profiles.json")
    entry = data["profiles"][profile_id]
    gpu, model, parallel, source = profile_id.split("/")
    memory, degree = _load_json("kv_pools.json"), int(parallel[2:])
    pool = memory["pools"][f"{gpu}/{model}"]
    coefficients = entry["coefficients_ms"]
    if source.startswith("vllm-"):
        vocabulary = model_configs()[model]["config"]["vocab_size"]
        coefficients = with_serving(coefficients, gpu, vocabulary)
    return TimingProfile(
        profile_id=profile_id,
        coefficients_ms=coefficients,
        host_ms=entry["host_ms"],
        grade=entry["grade"],
        pool=KVPool(
            pre_load_avail_gib=pool["pre_load_avail_gib"],
            weights_gib=pool["weights_gib"] / degree,
            kv_bytes_per_token=pool["kv_bytes_per_token"] / degree,
            mem_fraction_static=pool["mem_fraction_static"],
            chunked_prefill_size=pool["chunked_prefill_size"],
            host_gb_s=memory["host_gb_s"]["gpus"][gpu],
        ),
        frontend=Frontend(**entry.get("frontend_ms", {})),
        fit_domain=FitDomain(**data["fit_domains"][entry["provenance"]]),
    )
