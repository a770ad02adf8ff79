"""Presets of papers, and the default values of an experiment.

Defaults are overridden by presets, presets by experiment files, and experiment files by flags.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairbench.config.backend import AS_SERVED, EXTERNAL, BackendConfig, SGLangPolicy
from fairbench.config.cluster import KEYS as CLUSTER_KEYS
from fairbench.config.cluster import WITH_SETTINGS, cluster_parts, gateway_of, own_policy
from fairbench.config.flags import RUN
from fairbench.config.own_code import is_plugged_in
from fairbench.config.settings import machine_of
from fairbench.config.spec import MAX_CLIENTS, Draft, ExperimentSpec
from fairbench.errors import DataError, UsageError, about, explain, of_file, unknown_name
from fairbench.files.formats import bundled_names, file_of, read_toml
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.schedulers import registry
from fairbench.schedulers.gateway.registry import GATEWAY
from fairbench.tenants import with_tenants
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload

RATE_PER_REPLICA = "rate_per_replica"
"""The preset key of each well-behaved client's request rate, in programs/s per replica."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Fact(_Table):
    """A value that a paper's authors used in their experiments, with its source.

    ``key`` is a key of an experiment file, a setting ``NAME.PARAM``, or ``rate_per_replica``.
    """

    key: str
    value: bool | int | float | str
    source: str


class Unserved(_Table):
    """A workload that a preset refuses, and the reason.

    The preset accepts the workload if the user gives a value for the setting ``unless``.
    """

    unless: str
    because: str


class Preset(_Table):
    """The settings of a paper's experiments, and the workloads that the preset refuses."""

    name: str
    description: str
    paper: str
    workloads: dict[str, Unserved] = {}
    facts: Annotated[list[Fact], Field(min_length=1)]

    @property
    def values(self) -> dict[str, Any]:
        """The preset's values, keyed by an experiment file's key or by a setting ``NAME.PARAM``."""
        return {one.key: one.value for one in self.facts if one.key != RATE_PER_REPLICA}

    @property
    def experiment(self) -> dict[str, Any]:
        """The preset's values for keys of an experiment file, except settings."""
        return {key: value for key, value in self.values.items() if "." not in key}

    @property
    def settings(self) -> dict[str, Any]:
        """The preset's values for settings of components, with keys such as ``vtc.charge``."""
        return {key: value for key, value in self.values.items() if "." in key}

    @property
    def rate_per_replica(self) -> float | None:
        """The preset's arrival rate in programs/s per well-behaved client and per replica."""
        found = [one.value for one in self.facts if one.key == RATE_PER_REPLICA]
        return float(found[0]) if found else None


def preset_names() -> list[str]:
    """Return the names of the bundled presets in alphabetical order."""
    return bundled_names(files(__package__) / "presets")


@cache
def read_preset(ref: str) -> Preset:
    """Read a preset by bundled name, or by path if ``ref`` has a slash or ends in .toml.

    Raises UsageError for an unknown name, and DataError for an invalid file.
    """
    file, shown = file_of("preset", ref, files(__package__) / "presets")
    data = read_toml(file, shown)
    with of_file(shown, Preset.model_fields):
        preset = Preset.model_validate({"name": Path(shown).stem, **data})
    for key in preset.experiment:
        if key not in ExperimentSpec.model_fields:
            raise DataError(f"{shown}: {unknown_name('key', key, ExperimentSpec.model_fields)}")
    return preset


def preset_for(ref: str, backend: BackendConfig | None) -> Preset:
    """Return the preset with the name or path ``ref``.

    Raises UsageError if the experiment runs on real or emulated servers.
    """
    preset = read_preset(ref)
    if backend is not None:
        raise UsageError(
            f"preset = {preset.name!r}: presets need the simulator; leave --backend out"
        )
    return preset


def check_preset(preset: Preset, draft: Draft, workload: str) -> None:
    """Raise UsageError if values that the user gave contradict the preset."""
    described = preset.values.get("engine")
    engine = draft["engine"] if draft.is_said("engine") else described
    if described is not None and engine != described:
        raise UsageError(
            f"engine = {engine!r}: preset {preset.name} is for engine {described!r}; "
            "leave engine out, or choose another preset"
        )
    unserved = preset.workloads.get(workload)
    if unserved is not None and not draft.settings.is_said(unserved.unless):
        raise UsageError(
            f"workload = {workload!r}: preset {preset.name} does not support it: {unserved.because}"
        )


def at_rate_of(preset: Preset, workload: WorkloadSpec) -> WorkloadSpec:
    """Set the preset's request rate, if any, in every scenario of the workload."""
    rate = preset.rate_per_replica
    if rate is None:
        return workload
    scenarios = {
        name: one.model_copy(update={"rate": rate, "rates": None})
        for name, one in workload.scenarios.items()
    }
    return workload.model_copy(update={"scenarios": scenarios})


# The keys ``_DEFAULTED`` have fixed default values; all other defaults depend on the workload.
_DEFAULTED = ("scheduler", "dp", "workload", "scenario", "gpu", "model", "seed")
DEFAULTS: Mapping[str, Any] = {
    **{key: RUN[key].default for key in _DEFAULTED},
    "burstiness": float(RUN["burstiness"].default),
}

# If the user chooses a duration, the default warm-up is at most 10% of this duration.
WARMUP_SHARE = 0.1


def workload_defaults(draft: Mapping[str, object], workload: WorkloadSpec) -> dict[str, Any]:
    """Return a workload's defaults: number of clients, warm-up, drain limit and duration.

    No default duration is returned if the number of programs is set. If the user chose a duration,
    the warm-up is at most ``WARMUP_SHARE`` of this duration.
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
    """Return the default scenario: the only scenario of the workload, or else ``s1``."""
    only, *others = workload.scenarios
    return str(DEFAULTS["scenario"]) if others else only


def machine_of_workload(workload: WorkloadSpec) -> dict[str, str]:
    """Return a workload's default GPU, model and engine, if the workload has such defaults."""
    return {} if workload.machine is None else workload.machine.model_dump(exclude_none=True)


def has_own_code(draft: Mapping[str, object]) -> bool:
    """Return whether replicas use the scheduling code of an installed engine (``engine_code``)."""
    return draft.get("engine_code") is not None


def pair_of(draft: Mapping[str, object]) -> tuple[str, str]:
    """Return the names of an experiment's router and local scheduler.

    Raises UsageError for unknown names of schedulers.
    """
    with about("scheduler"):
        router, local = registry.split_pair(text_of(draft, "scheduler"))
    router = text_of(draft, "router") if "router" in draft else router
    if owned := has_own_code(draft):
        local = own_policy(draft, local, get_args(SGLangPolicy))
    else:
        local = text_of(draft, "local") if "local" in draft else local
    for what, name, known in (
        ("router", router, registry.routers_by_name()),
        ("local scheduler", local, registry.locals_by_name()),
    ):
        if name in known or (what, name) == ("router", EXTERNAL):
            continue
        # The real code of an engine may have policies that are not registered in fairbench.
        if what == "router" or not owned:
            raise registry.unknown_scheduler(what, name, known).of(what.split()[0], "scheduler")
    return router, local


def used_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the components, such as the router, whose parameters are used.

    The result omits endpoints and routers of other projects, because fairbench configures neither.
    """
    if draft["scheduler"] == AS_SERVED:
        return ()
    router, local = pair_of(draft)
    modelled = (
        not has_own_code(draft) or local in WITH_SETTINGS or is_plugged_in(local, engine_of(draft))
    )
    routed = registry.params_owner(router)
    parts: tuple[str, ...] = (routed, local) if modelled else (routed,)
    if "gateway" in draft and (gateway := gateway_of(draft)):
        parts += (*gateway.values(), GATEWAY)
    if not CLUSTER_KEYS.isdisjoint(draft):
        parts += cluster_parts(draft)
    parts += machine_of(engine_of(draft))
    return tuple(name for name in dict.fromkeys(parts) if name != EXTERNAL)


def engine_of(draft: Mapping[str, object]) -> str | None:
    """Return the name of the engine that an experiment simulates, or None for the default engine.

    Raises UsageError if the engine's name is unknown.
    """
    if "engine" not in draft:
        return None
    engine = text_of(draft, "engine")
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES).of("engine")
    return None if engine == DEFAULT_ENGINE else engine


def read_workload(value: Any) -> WorkloadSpec:
    """Return a workload that is given by name, by path, or as a table of an experiment file."""
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
    """Return the text under an experiment's key; raise UsageError if the value is not a text."""
    value = draft[key]
    if not isinstance(value, str):
        raise UsageError(f"{key} = {value!r}: must be a string").of(key)
    return value


# keys under which old experiment files store client weights; ``moved_weights`` moves these weights
# to the table of client weights
SPELLINGS = frozenset({"vtc.weights", "vtc-predict.weights", "lcf.weights"})


def moved_weights(
    settings: Mapping[str, Any], weights: Mapping[str, Any], assigned: Container[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move client weights out of the settings; return the settings and a table of weights.

    Settings whose keys are in ``assigned`` come from flags and override ``weights``. Settings that
    come from a file do not override ``weights``.
    """
    kept, found = dict(settings), dict(weights)
    for key in SPELLINGS.intersection(settings):
        moved, kept[key] = settings[key], {}
        found = found | moved if key in assigned else moved | found
    return kept, found


def table_of(keys: Mapping[str, Any], key: str = "weights") -> dict[str, Any]:
    """Return the table under a key, or {} if the key is missing.

    Raises UsageError if the value of ``key`` is not a table.
    """
    value = keys.get(key) or {}
    if not isinstance(value, Mapping):
        shape = "NAME = WEIGHT" if key == "weights" else "LATENCY = TIME"
        raise UsageError(f"{key} = {value!r}: must be a table of {shape}").of(key)
    return dict(value)


def resolve_weights(
    workload: WorkloadSpec, clients: Any, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the client weights of a run: the weights of the workload, overridden by ``given``.

    A client without a weight in the returned table has weight 1. A weight of 1 is omitted unless it
    overrides the workload's weight. The function returns None if every client has weight 1. This
    function does not check ``clients`` and ``given``, because ``ExperimentSpec`` checks them.
    """
    own = workload.client_weights or {}
    if not (given or own):
        return None
    count = min(clients, MAX_CLIENTS) if isinstance(clients, int) else workload.clients
    names = dict.fromkeys(with_tenants(workload.name_clients(count)))
    said = {name: one for name, one in own.items() if name in names}
    silent = {name for name, one in given.items() if one == 1 and name in names} - own.keys()
    said |= {name: one for name, one in given.items() if name not in silent}
    # Weights are sorted by client, so that experiments with equal weights are equal.
    return {name: said[name] for name in (names | said) if name in said} or None
