"""Defaults of a spec, also of its weights, and which values of a file somebody chose.

A stored experiment spells out every value, so that a run can be repeated. Its table ``given`` has
the values that flags, settings or a file set; all others are defaults of the version that stored
the file. If flags replace a value on which defaults depend, and in a gate, the defaults are
computed again.
"""

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
from fairbench.config.preset import read_preset, without_preset
from fairbench.config.settings import (
    current_keys,
    flat_settings,
    machine_of,
    parts,
    resolve_settings,
)
from fairbench.config.spec import DIGEST, GIVEN, MAX_CLIENTS, digest_of, without_given
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
from fairbench.workloads.spec import load_workload, workload_names

# The keys that every spec of a simulation has; other defaults depend on the workload.
_DEFAULTED = ("scheduler", "dp", "workload", "scenario", "gpu", "model", "seed")
DEFAULTS: Mapping[str, Any] = {
    **{key: RUN[key].default for key in _DEFAULTED},
    "burstiness": float(RUN["burstiness"].default),
}

# part of a duration that the user chose; the workload's own warm-up may not fit into it
WARMUP_SHARE = 0.1


ALWAYS_STORED = ("router", "local", "warmup_s", "settings", "max_drain_s", "clients", "burstiness")
# keys that other keys imply; all other keys of a stored experiment count as chosen
IMPLIED = frozenset(
    {"gpu", "model", "engine", "clients", "duration_s", "warmup_s", "max_drain_s", "weights"}
)
NOT_RECORDED = frozenset({"settings", "tag", "backend", "workload"})
TABLES = frozenset({"weights", "goodput"})  # of which a flag overrides single entries


def knows_given(file: Mapping[str, Any]) -> bool:
    """Return whether an experiment file tells which values were chosen, as stored files do."""
    given = file.get(GIVEN)
    if not isinstance(given, Mapping) or not isinstance(given.get("settings"), Mapping):
        return False
    return isinstance(given.get("workload", ""), str)


def is_complete(file: Mapping[str, Any]) -> bool:
    """Return whether an experiment file spells out every value, as stored files do."""
    return all(key in file for key in ALWAYS_STORED)


def is_edited(file: Mapping[str, Any]) -> bool:
    """Return whether a stored file was changed by hand since fairbench wrote it."""
    return bool(file[GIVEN].get(DIGEST) != digest_of(file))


def chosen_part(file: Mapping[str, Any], *, other_workload: bool = False) -> Mapping[str, Any]:
    """Return an experiment file without the values that nobody chose.

    Files of versions without the table ``given``, and files edited by hand, are compared with
    today's defaults. With ``other_workload``, parameters of the stored workload are left out, and
    its scenario unless somebody chose it.
    """
    kept = _chosen(file, other_workload=other_workload)
    if other_workload and _has_usual_scenario(file):
        return {key: value for key, value in kept.items() if key != "scenario"}
    return kept


def _chosen(file: Mapping[str, Any], *, other_workload: bool) -> Mapping[str, Any]:
    if not knows_given(file):
        return without_defaults(file) if is_complete(file) else file
    given, rest = file[GIVEN], without_given(file)
    settings, own = flat_settings(rest.get("settings", {})), flat_settings(given["settings"])
    if other_workload:
        own = {key: one for key, one in own.items() if key.partition(".")[0] in parts()}
    kept = _kept_keys(given, rest)
    kept["settings"] = {key: settings.get(key, value) for key, value in own.items()}
    if is_edited(file):
        guessed = dict(without_defaults(rest))
        found = flat_settings(guessed.pop("settings", {})) | kept["settings"]
        kept = guessed | kept | {"settings": found, "workload": rest["workload"]}
    return kept


def _has_usual_scenario(file: Mapping[str, Any]) -> bool:
    """Return whether nobody chose the scenario of an experiment file, as far as it tells."""
    if knows_given(file):
        return "scenario" not in file[GIVEN]
    with suppress(UsageError):
        workload = read_workload(file.get("workload", DEFAULTS["workload"]))
        return bool(file.get("scenario") == usual_scenario(workload))
    return False


def _kept_keys(given: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the top-level keys that are no defaults.

    A bundled workload is given by name; any other workload is the stored table.
    """
    implied = set(IMPLIED)
    if "preset" in rest:
        implied |= read_preset(str(rest["preset"])).experiment.keys()
    kept = {key: value for key, value in rest.items() if key in given or key not in implied}
    gpu = str(given.get("gpu", ""))
    if gpu and str(rest.get("gpu")).startswith(gpu):
        kept["gpu"] = gpu
    if "weights" in given:
        kept["weights"] = given["weights"]
    if "workload" in given:
        kept["workload"] = given["workload"]
    return kept


def given_values(
    flags: Mapping[str, Any], assignments: Mapping[str, Any], file: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the values that were chosen for an experiment; None if a file does not tell them.

    Args:
        flags: Keys of the experiment that flags set.
        assignments: Settings ``NAME.PARAM`` that flags set.
        file: Experiment file below them, empty without one.
    """
    if is_complete(flags) or (is_complete(file) and not knows_given(file)):
        return None
    base = chosen_part(file, other_workload="workload" in flags)
    known = file[GIVEN] if knows_given(file) and not is_edited(file) else base
    below = {key: value for key, value in base.items() if key in known}
    found = {key: one for key, one in {**below, **flags}.items() if key not in NOT_RECORDED}
    for table in TABLES.intersection(found):
        found[table] = table_of(below, table) | table_of(flags, table)
    workload = flags.get("workload", base.get("workload", DEFAULTS["workload"]))
    if isinstance(workload, str) and workload in workload_names():
        found["workload"] = workload
    settings = flat_settings(table_of(base, "settings")) | current_keys(assignments)
    return {**dict(sorted(found.items())), "settings": dict(sorted(settings.items()))}


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
    workload = read_workload(file.get("workload", DEFAULTS["workload"]))
    scenario = usual_scenario(workload)
    draft = {**DEFAULTS, "scenario": scenario, **file}
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
    _, usual = resolve_settings(workload, text_of(draft, "scenario"), used_parts(draft), {})
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
        "clients": workload.client_count(str(draft.get("scenario", usual_scenario(workload)))),
        "warmup_s": workload.warmup_s,
        "max_drain_s": workload.max_drain_s,
    }
    if "duration_s" not in draft and "num_programs" not in draft:
        times["duration_s"] = workload.duration_s
    chosen_s = draft.get("duration_s")
    if isinstance(chosen_s, int | float) and 0 < chosen_s < math.inf:
        times["warmup_s"] = min(workload.warmup_s, WARMUP_SHARE * chosen_s)
    return times


def usual_scenario(workload: WorkloadSpec) -> str:
    """Return the scenario of a run that names none: the only one of the workload, else s1."""
    only, *others = workload.scenarios
    return str(DEFAULTS["scenario"]) if others else only


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
