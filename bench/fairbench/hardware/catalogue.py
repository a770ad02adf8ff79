"""Timing profiles by full id and by users' names of GPUs and models, bundled or in files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.profile_file import FILE, SUFFIX, profile_of_table, read_profile
from fairbench.hardware.timing import FitDomain, Frontend, KVPool, TimingProfile

# Models of the same shape, which take the same time: only their weights' values differ.
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
    """Return the known model for a name, or the normalised name.

    Organisation, case, ``Meta-`` and endings such as ``-Instruct`` are ignored:
    ``meta-llama/Llama-3.1-70B-Instruct`` is ``llama-3.1-70b``. Models of one shape have one
    profile.
    """
    models = set(known)
    text = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    # Qwen writes its version without a hyphen, Llama with one.
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
"""The profiles that ``hardware/profiles`` has from ``fairbench profile``, as it writes them."""

MEASURED = "/measured-sglang"
"""End of the id of a profile that was fitted to measured serving, not to single operators."""


@cache
def _load(name: str) -> dict[str, Any]:
    text = (files("fairbench.hardware") / "profiles" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def _derived() -> dict[str, Any]:
    """Return the tables of the derived profiles by id."""
    return {one["profile"]: one for one in _load(DERIVED)["profiles"]}


def profile_ids() -> list[str]:
    """Return every bundled profile, ``gpu/model/tp/source``."""
    return sorted([*_load("engine_profiles.json")["profiles"], *_derived()])


def model_configs() -> dict[str, Any]:
    """Return the bundled models with their names on the hub and their ``config.json``."""
    models: dict[str, Any] = _load("model_configs.json")["models"]
    return models


def is_profile_file(gpu: str) -> bool:
    """Return whether ``--gpu`` names a file, or is the stored content of a file."""
    return gpu.endswith(SUFFIX) or f"/{FILE}" in gpu


def is_known(profile_id: str) -> bool:
    """Return whether ``load_profile`` finds the profile; a file may be gone or changed."""
    if not is_profile_file(profile_id):
        return profile_id in profile_ids()
    try:
        read_profile(profile_id)
    except UsageError:
        return False
    return True


def named_profile(name: str) -> TimingProfile:
    """Return the profile of a full id or a file. Raises UsageError for an unknown name."""
    if not is_profile_file(name) and name not in profile_ids():
        raise unknown_name("profile", name, profile_ids())
    return load_profile(name)


def model_names() -> list[str]:
    """Return the models that some profile covers."""
    return sorted({name.split("/")[1] for name in profile_ids()})


def resolve_profile(gpu: str, model: str) -> TimingProfile:
    """Return the profile for a GPU (a prefix of a profile id, or a TOML file) and a model.

    A model may be spelled as on a hub. If several profiles match, SGLang's at the lowest TP degree
    is chosen, preferring a profile fitted to measured serving. Raises UsageError for an unknown GPU
    or model, and for a prefix that is still ambiguous.
    """
    if is_profile_file(gpu):
        return read_profile(gpu)
    ids = profile_ids()
    model = known_model(model)
    matching = [name for name in ids if name.startswith(gpu.lower())]
    if not matching:
        raise unknown_name("gpu", gpu, {name.split("/")[0] for name in ids})
    of_model = [name for name in matching if name.split("/")[1] == model]
    if not of_model:
        models = ", ".join(sorted({name.split("/")[1] for name in matching}))
        raise UsageError(f"gpu {gpu!r} has no profile for model {model!r}: choose from {models}")
    if len({name.split("/")[0] for name in of_model}) > 1:
        gpus = ", ".join(sorted({name.split("/")[0] for name in of_model}))
        raise UsageError(f"gpu {gpu!r} is ambiguous: choose from {gpus}")
    lowest = min(map(_degree, of_model))
    usual = [name for name in of_model if _degree(name) == lowest]
    served = [name for name in usual if name.endswith(MEASURED)]
    preferred = served or [name for name in usual if "/sglang" in name] or usual
    if len(preferred) > 1:
        raise UsageError(f"gpu {gpu!r} is ambiguous: choose from {', '.join(preferred)}")
    return load_profile(preferred[0])


def known_model(model: str) -> str:
    """Return the catalogue's model for a name. Raises UsageError for an unknown name."""
    found = canonical_model(model, model_names())
    if found not in model_names():
        raise unknown_name("model", model, model_names())
    return found


def _degree(profile_id: str) -> int:
    return int(profile_id.split("/")[2].removeprefix("tp"))


def load_profile(profile_id: str) -> TimingProfile:
    """Load a profile by its full id, with the KV pool of its GPU, model and TP degree."""
    if is_profile_file(profile_id):
        return read_profile(profile_id)
    if profile_id in _derived():
        return profile_of_table(_derived()[profile_id], DERIVED)
    data = _load("engine_profiles.json")
    entry = data["profiles"][profile_id]
    gpu, model, parallel, _ = profile_id.split("/")
    memory, degree = _load("kv_pools.json"), int(parallel[2:])
    pool = memory["pools"][f"{gpu}/{model}"]
    return TimingProfile(
        profile_id=profile_id,
        coefficients_ms=entry["coefficients_ms"],
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
