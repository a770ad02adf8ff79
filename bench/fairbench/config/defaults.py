"""Defaults of a spec, also of its weights, and which values of a file were set explicitly."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from fairbench.config.backend import AS_SERVED, EXTERNAL
from fairbench.config.cluster import KEYS as CLUSTER_KEYS
from fairbench.config.cluster import cluster_parts
from fairbench.config.flags.run import RUN
from fairbench.config.gateway import gateway_of
from fairbench.config.preset import without_preset
from fairbench.config.settings import flat_settings, machine_of, resolve_settings
from fairbench.config.spec import MAX_CLIENTS
from fairbench.errors import UsageError, about, explain, unknown_name
from fairbench.hardware.catalogue import resolve_profile
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.schedulers.gateway.registry import GATEWAY
from fairbench.schedulers.registry import (
    locals_by_name,
    routers_by_name,
    split_pair,
    unknown_scheduler,
)
from fairbench.tenants import with_tenants
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload

# The keys that every spec of a simulation has; other defaults depend on the workload.
_DEFAULTED = ("scheduler", "dp", "workload", "scenario", "gpu", "model", "seed")
DEFAULTS: Mapping[str, Any] = {
    **{key: RUN[key].default for key in _DEFAULTED},
    "burstiness": float(RUN["burstiness"].default),
}

# part of a duration that the user chose; the workload's own warm-up may not fit into it
WARMUP_SHARE = 0.1


def without_defaults(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the file without the values that its workload, scheduler, GPU or model imply.

    A stored experiment spells out every value. If flags replace the workload, scheduler, GPU or
    model, defaults derived from the old one must not survive.
    """
    try:
        return _without_defaults(file)
    except UsageError:  # wrong by itself; the caller reports what remains wrong after the flags
        return file


def _without_defaults(file: Mapping[str, Any]) -> dict[str, Any]:
    file = without_preset(file) if "preset" in file else file
    draft = {**DEFAULTS, **file}
    workload = read_workload(draft["workload"])
    kept = _chosen_times(file, workload)
    with suppress(UsageError):  # no other spelling names this profile
        gpu = text_of(draft, "gpu").split("/")[0]
        if resolve_profile(gpu, text_of(draft, "model")).profile_id == draft["gpu"]:
            kept["gpu"] = gpu
    kept = {k: v for k, v in kept.items() if machine_of_workload(workload).get(k) != v}
    if _is_usual_machine(draft, workload):
        kept = {key: value for key, value in kept.items() if key not in ("gpu", "model")}
    if kept.get("weights") == resolve_weights(workload, file.get("clients"), {}):
        kept.pop("weights", None)
    scenario = text_of(draft, "scenario")
    _, usual = resolve_settings(workload, scenario, used_parts(draft), {})
    given = flat_settings(file.get("settings", {}))
    kept["settings"] = {k: v for k, v in given.items() if k not in usual or usual[k] != v}
    return kept


def _is_usual_machine(draft: Mapping[str, object], workload: WorkloadSpec) -> bool:
    usual = {**DEFAULTS, **machine_of_workload(workload)}
    with suppress(UsageError):
        profile = resolve_profile(usual["gpu"], usual["model"]).profile_id
        return bool((draft["gpu"], draft["model"]) == (profile, usual["model"]))
    return False


def _chosen_times(file: Mapping[str, Any], workload: WorkloadSpec) -> dict[str, Any]:
    """Return the file without the times and the number of clients that equal their defaults.

    The warm-up is checked before and after the duration, on which its default may depend.
    """
    kept = dict(file)
    whole = {**workload_defaults(file, workload), **file}
    for key in ("warmup_s", "duration_s", "warmup_s", "max_drain_s", "clients"):
        fewer = {name: value for name, value in kept.items() if name != key}
        if {**workload_defaults(fewer, workload), **fewer} == whole:
            kept = fewer
    return kept


def workload_defaults(draft: Mapping[str, object], workload: WorkloadSpec) -> dict[str, Any]:
    """Return the workload's number of clients and times, unless other values determine them.

    A number of programs disables the default duration. A duration other than the workload's limits
    the warm-up to ``WARMUP_SHARE`` of that duration.
    """
    times = {
        "clients": workload.client_count(str(draft.get("scenario", DEFAULTS["scenario"]))),
        "warmup_s": workload.warmup_s,
        "max_drain_s": workload.max_drain_s,
    }
    if "duration_s" not in draft and "num_programs" not in draft:
        times["duration_s"] = workload.duration_s
    chosen_s = draft.get("duration_s")
    if isinstance(chosen_s, int | float) and 0 < chosen_s < math.inf:
        times["warmup_s"] = min(workload.warmup_s, WARMUP_SHARE * chosen_s)
    return times


def machine_of_workload(workload: WorkloadSpec) -> dict[str, str]:
    """Return GPU, model and engine for which the workload is made; empty for most."""
    return {} if workload.machine is None else workload.machine.model_dump(exclude_none=True)


def parts_of(draft: Mapping[str, object]) -> tuple[str, str]:
    """Return the draft's router and local scheduler. Raises UsageError if unknown."""
    with about("scheduler"):
        router, local = split_pair(text_of(draft, "scheduler"))
    router = text_of(draft, "router") if "router" in draft else router
    local = text_of(draft, "local") if "local" in draft else local
    for what, name, known in (
        ("router", router, routers_by_name()),
        ("local scheduler", local, locals_by_name()),
    ):
        if name not in known and (what, name) != ("router", EXTERNAL):
            raise unknown_scheduler(what, name, known).of(what.split()[0], "scheduler")
    return router, local


def used_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the parts whose parameters matter: router, local scheduler, gateway and machine.

    The result is empty for an endpoint that is benchmarked as served. An external router has no
    parameters.
    """
    if draft["scheduler"] == AS_SERVED:
        return ()
    parts: tuple[str, ...] = parts_of(draft)
    if "gateway" in draft and (gateway := gateway_of(draft)):
        parts += (*gateway.values(), GATEWAY)
    if not CLUSTER_KEYS.isdisjoint(draft):
        parts += cluster_parts(draft)
    parts += machine_of(engine_of(draft))
    return tuple(name for name in dict.fromkeys(parts) if name != EXTERNAL)


def engine_of(draft: Mapping[str, object]) -> str | None:
    """Return the engine that an unfinished spec simulates, or None for the default.

    Raises UsageError if unknown.
    """
    if "engine" not in draft:
        return None
    engine = text_of(draft, "engine")
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES).of("engine")
    return None if engine == DEFAULT_ENGINE else engine


def read_workload(value: Any) -> WorkloadSpec:
    """Return a workload given by name or path, or as a table of the experiment file."""
    with about("workload"):
        if isinstance(value, str):
            return load_workload(value)
        if not isinstance(value, Mapping | WorkloadSpec):
            raise UsageError(f"workload = {value!r}: must be a name, a path or a table")
        try:
            return WorkloadSpec.model_validate(value)
        except ValidationError as error:
            raise UsageError(explain(error, "workload")) from None


def text_of(draft: Mapping[str, object], key: str) -> str:
    """Return the text under a key. Raises UsageError for any other type."""
    value = draft[key]
    if not isinstance(value, str):
        raise UsageError(f"{key} = {value!r}: must be a text").of(key)
    return value


# Weights belong to the experiment. Earlier versions had weights as these parameters of local
# schedulers; their values are moved.
SPELLINGS = frozenset({"vtc.weights", "vtc-predict.weights", "lcf.weights"})


def moved_weights(
    settings: Mapping[str, Any], weights: Mapping[str, Any], assigned: Container[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the parts in use without weights, and a table of all weights.

    Weights of an ``assigned`` setting override the file's ``weights``; the file's override those of
    all other settings.
    """
    kept, found = dict(settings), dict(weights)
    for key in SPELLINGS.intersection(settings):
        moved, kept[key] = settings[key], {}
        found = found | moved if key in assigned else moved | found
    return kept, found


def table_of(keys: Mapping[str, Any], key: str = "weights") -> dict[str, Any]:
    """Return the table under a key, if present. Raises UsageError for another type."""
    value = keys.get(key) or {}
    if not isinstance(value, Mapping):
        shape = "NAME = WEIGHT" if key == "weights" else "LATENCY = TIME"
        raise UsageError(f"{key} = {value!r}: must be a table of {shape}").of(key)
    return dict(value)


def resolve_weights(
    workload: WorkloadSpec, clients: Any, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a run's weights: the workload's own, overridden by ``given``.

    Clients without a weight have 1. A given weight of 1 is omitted unless the workload has another
    one. The result is None if there are no weights. Errors in ``clients`` or ``given`` are left to
    the spec.
    """
    own = workload.client_weights or {}
    if not (given or own):
        return None
    count = min(clients, MAX_CLIENTS) if isinstance(clients, int) else workload.clients
    names = dict.fromkeys(with_tenants(workload.name_clients(count)))
    said = {name: one for name, one in own.items() if name in names}
    silent = {name for name, one in given.items() if one == 1 and name in names} - own.keys()
    said |= {name: one for name, one in given.items() if name not in silent}
    # In client order, so that the same weights give the same experiment.
    return {name: said[name] for name in (names | said) if name in said} or None
