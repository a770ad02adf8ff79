"""Settings ``NAME.PARAM=VALUE``: parameters of schedulers, machines and workloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairbench.errors import UsageError, about, unknown_name
from fairbench.files.formats import toml_value
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.engines import (
    DEFAULT_ENGINE,
    DISAGGREGATION,
    ENGINES,
    ClusterParams,
    DisaggregationParams,
)
from fairbench.hardware.timing import TimingParams
from fairbench.named import by_path, imported, named
from fairbench.schedulers import params
from fairbench.schedulers.eviction.registry import (
    ALL_EVICTIONS,
    MEMORY,
    MemoryParams,
    eviction_class,
)
from fairbench.schedulers.gateway.registry import GATEWAY_PARAMS
from fairbench.schedulers.peers import ROUTERS, RoutersParams
from fairbench.schedulers.registry import PAIRS, params_classes, params_owner
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload, with_settings, workload_names

STORED_AS: Mapping[str, str] = {
    "cluster.eviction_delay_s": "engine.eviction_delay_s",
    "timing.error_pct": "engine.timing_error_pct",
}
"""Settings that were renamed, with the names that stored files use; ``--set`` accepts both names.

In older versions of fairbench, the settings in ``STORED_AS`` were parameters of the engine. Stored
files keep the former names of renamed settings, so an experiment's identity does not change.
"""

_CURRENT = {stored: key for key, stored in STORED_AS.items()}


def current_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rename outdated keys of settings; if a key then occurs twice, the last value counts."""
    return {_CURRENT.get(key, key): value for key, value in settings.items()}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables ``[settings.NAME]`` of a file as a flat dict with keys ``NAME.PARAM``."""
    flat_values: dict[str, Any] = {}
    for key, value in settings.items():
        if "." not in key and isinstance(value, Mapping):
            flat_values.update({f"{key}.{param}": inner for param, inner in value.items()})
        else:
            flat_values[key] = value
    return current_keys(flat_values)


def flat_values(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested tables under a dotted key, such as ``workload.name``."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat_values(value, "" if prefix + key == "settings" else f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


def as_toml(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of nested tables as TOML texts, under dotted keys such as ``a.b``."""
    return {key: toml_value(value) for key, value in flat_values(tables)}


def stored_tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return settings as tables of an experiment file (the inverse of ``flat_settings``)."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, _, param = STORED_AS.get(key, key).partition(".")
        tables.setdefault(name, {})[param] = value
    return tables


ENGINE, CLUSTER, TIMING = "engine", "cluster", "timing"

MACHINE: Mapping[str, type] = {ENGINE: EngineParams, CLUSTER: ClusterParams, TIMING: TimingParams}
"""The parameter class of each component of the simulated machine; stored files use this order."""


def machine_of(engine: str | None) -> tuple[str, ...]:
    """Return the components that simulate an engine (default: SGLang), its cluster and timing."""
    return (ENGINES[engine or DEFAULT_ENGINE].part, CLUSTER, TIMING)


def params_by_part() -> params.PartParams:
    """Return the ``Params`` classes of all schedulers, policies and machine components, by name."""
    engines = by_path({kind.part: kind.params for kind in ENGINES.values()})
    several = {ROUTERS: RoutersParams, DISAGGREGATION: DisaggregationParams, MEMORY: MemoryParams}
    machine = {**several, **MACHINE}
    policies = params_classes() | GATEWAY_PARAMS | params.params_of(ALL_EVICTIONS, eviction_class)
    return policies | named(machine, machine.__getitem__) | engines


def resolve_settings(
    workload: WorkloadSpec, scenario: str, used: Iterable[str], given: Mapping[str, Any]
) -> tuple[WorkloadSpec, dict[str, Any]]:
    """Return the workload with its parameters, and all settings of the components in ``used``.

    Values in ``given`` override values of the workload, which override the defaults of ``Params``
    classes. All values in ``given`` are checked, even for schedulers that the experiment does not
    use. Raises UsageError with the wrong key and the allowed values.
    """
    known = params_by_part()
    if workload.name in known:
        taken = (
            f"workload {workload.name!r}: this is the name of a scheduler; give the workload "
            "another name"
        )
        raise UsageError(taken).of("workload")
    names = _owners(given)
    for owner in names:
        with about(*(key for key in given if key.startswith(f"{owner}."))):
            if owner in known:
                params.make_params(owner, known[owner], given)
            elif owner == workload.name:
                workload = with_settings(workload, params.own_settings(owner, given))
            elif owner in workload_names():
                with_settings(load_workload(owner), params.own_settings(owner, given))
            else:
                raise _unknown_owner(owner, workload, known)
    with about("scenario", "workload"):
        merged = _checked_defaults(workload, scenario, known) | dict(given)
    resolved: dict[str, Any] = {}
    for owner in used:
        resolved |= params.as_settings(owner, params.make_params(owner, known[owner], merged))
    return workload, resolved


def check_engine_settings(engine: str | None, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for settings of engines other than ``engine`` (by default, SGLang)."""
    chosen = engine or DEFAULT_ENGINE
    for other, kind in ENGINES.items():
        given = params.own_settings(kind.part, settings) if other != chosen else {}
        for name, value in given.items():
            if value != getattr(imported(kind.params)(), name):
                raise UsageError(
                    f"{kind.part}.{name} = {value!r}: engine {chosen} has no such "
                    "setting; leave it out"
                ).of(f"{kind.part}.{name}", "engine")


def _owners(settings: Mapping[str, Any]) -> list[str]:
    """Return the part before the dot of each setting; raise UsageError if a dot is missing."""
    for key, value in settings.items():
        if "." not in key:
            if key in {*params_by_part(), *workload_names()}:
                raise UsageError(f"settings.{key} = {value!r}: must be a table").of(key)
            known = {f"{name}.{key}": name for name in params_by_part()}
            raise unknown_name("setting", key, known).of(key)
    return list(dict.fromkeys(key.split(".", 1)[0] for key in settings))


def _unknown_owner(owner: str, workload: WorkloadSpec, known: Mapping[str, type]) -> UsageError:
    if owner in PAIRS:
        router, local = PAIRS[owner]
        return UsageError(
            f"{owner} is a pair of router and local scheduler: set the parameters of "
            f"{params_owner(router)} or of {local} instead"
        )
    return unknown_name("prefix of a setting", owner, {*known, workload.name, *workload_names()})


def _checked_defaults(
    workload: WorkloadSpec, scenario: str, known: Mapping[str, type]
) -> dict[str, Any]:
    """Check the names of the settings in a workload file, and return the settings."""
    defaults = current_keys(workload.scheduler_settings(scenario))
    for owner in _owners(defaults):
        if owner not in known:
            raise unknown_name(f"prefix of a setting in workload {workload.name}", owner, known)
        params.check_names(owner, known[owner], params.own_settings(owner, defaults))
    return defaults
