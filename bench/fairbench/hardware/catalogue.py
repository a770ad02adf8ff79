"""The bundled timing profiles, by full id and by what a user calls them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.kv_pool import KVPool
from fairbench.hardware.timing import FitDomain, Frontend, TimingProfile

MEASURED = "/measured-sglang"
"""How the id of a profile ends that was fitted to measured serving, not to single operators."""


@cache
def _load(name: str) -> dict[str, Any]:
    text = (files("fairbench.hardware") / "profiles" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def profile_ids() -> list[str]:
    """Return every bundled profile, ``gpu/model/tp/source``."""
    return sorted(_load("engine_profiles.json")["profiles"])


def model_names() -> list[str]:
    """Return the models that some profile covers."""
    return sorted({name.split("/")[1] for name in profile_ids()})


def resolve_profile(gpu: str, model: str) -> TimingProfile:
    """Return the profile for a GPU (any prefix of a profile id) and a model.

    If several profiles match, SGLang at TP 1 is chosen, preferring a profile fitted to measured
    serving. Raises UsageError for an unknown GPU or model, and for a prefix that is still
    ambiguous.
    """
    ids = profile_ids()
    if model not in model_names():
        raise unknown_name("model", model, model_names())
    matching = [name for name in ids if name.startswith(gpu.lower())]
    if not matching:
        raise unknown_name("gpu", gpu, {name.split("/")[0] for name in ids})
    of_model = [name for name in matching if name.split("/")[1] == model]
    if not of_model:
        models = ", ".join(sorted({name.split("/")[1] for name in matching}))
        raise UsageError(f"gpu {gpu!r} has no profile for model {model!r}: it has {models}")
    if len({name.split("/")[0] for name in of_model}) > 1:
        gpus = ", ".join(sorted({name.split("/")[0] for name in of_model}))
        raise UsageError(f"gpu {gpu!r} is ambiguous: it may be {gpus}")
    usual = [name for name in of_model if name.split("/")[2] == "tp1"]
    served = [name for name in usual if name.endswith(MEASURED)]
    preferred = served or [name for name in usual if "/sglang" in name] or of_model
    if len(preferred) > 1:
        raise UsageError(f"gpu {gpu!r} is ambiguous: it may be {', '.join(preferred)}")
    return load_profile(preferred[0])


def load_profile(profile_id: str) -> TimingProfile:
    """Load a bundled profile by its full id, with the KV pool of its GPU, model and TP degree."""
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
