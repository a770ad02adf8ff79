"""``NAME.PARAM=VALUE``: every parameter of schedulers, machine and workload, and its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairbench.errors import UsageError, about, unknown_name
from fairbench.files.toml_text import toml_value
from fairbench.hardware.cluster_params import DISAGGREGATION, ClusterParams, DisaggregationParams
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.hardware.timing import TimingParams
from fairbench.named import by_path, imported, named
from fairbench.schedulers.eviction.registry import EVICTIONS, eviction_class
from fairbench.schedulers.gateway.registry import GATEWAY_PARAMS
from fairbench.schedulers.params import (
    PartParams,
    as_settings,
    check_names,
    make_params,
    own_settings,
    params_of,
)
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams
from fairbench.schedulers.registry import PAIRS, params_classes
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload, with_settings, workload_names

STORED_AS: Mapping[str, str] = {
    "cluster.eviction_delay_s": "engine.eviction_delay_s",
    "timing.error_pct": "engine.timing_error_pct",
}
"""Settings whose key in a stored file differs; a user may write either key.

These settings used to belong to the engine. Stored files use the former key, so that every
experiment keeps its identity.
"""

_CURRENT = {stored: key for key, stored in STORED_AS.items()}


def current_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under current keys; of two synonyms the later entry wins."""
    return {_CURRENT.get(key, key): value for key, value in settings.items()}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``NAME.PARAM -> value`` from the tables ``[settings.NAME]`` of a file."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if "." not in key and isinstance(value, Mapping):
            flat.update({f"{key}.{param}": inner for param, inner in value.items()})
        else:
            flat[key] = value
    return current_keys(flat)


def flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested tables with its key, such as ``workload.name``."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, "" if prefix + key == "settings" else f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


def as_toml(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of tables, as TOML by flat key."""
    return {key: toml_value(value) for key, value in flat(tables)}


def stored_tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables for an experiment file; this is the inverse of ``flat_settings``."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, _, param = STORED_AS.get(key, key).partition(".")
        tables.setdefault(name, {})[param] = value
    return tables


ENGINE, CLUSTER, TIMING = "engine", "cluster", "timing"

MACHINE: Mapping[str, type] = {ENGINE: EngineParams, CLUSTER: ClusterParams, TIMING: TimingParams}
"""The parts that schedulers run on, in the order in which an experiment spells them out."""


def machine_of(engine: str | None) -> tuple[str, ...]:
    """Return the machine parts for an engine; None means the default engine."""
    return (ENGINES[engine or DEFAULT_ENGINE].part, CLUSTER, TIMING)


def parts() -> PartParams:
    """Return the ``Params`` of every part except workloads, by the part's name."""
    engines = by_path({kind.part: kind.params for kind in ENGINES.values()})
    several = {ROUTERS: RoutersParams, DISAGGREGATION: DisaggregationParams}
    machine = {**several, **MACHINE}
    policies = params_classes() | GATEWAY_PARAMS | params_of(EVICTIONS, eviction_class)
    return policies | named(machine, machine.__getitem__) | engines


def resolve_settings(
    workload: WorkloadSpec, scenario: str, used: Iterable[str], given: Mapping[str, Any]
) -> tuple[WorkloadSpec, dict[str, Any]]:
    """Return the workload with its settings, and every setting of the parts ``used``.

    A parameter is its class's default, overridden by the workload's value, overridden by ``given``.
    All of ``given`` is checked, used or not. Raises UsageError naming the key and what is allowed.
    """
    known = parts()
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
                make_params(owner, known[owner], given)
            elif owner == workload.name:
                workload = with_settings(workload, own_settings(owner, given))
            elif owner in workload_names():
                with_settings(load_workload(owner), own_settings(owner, given))
            else:
                raise _unknown_owner(owner, workload, known)
    with about("scenario", "workload"):
        merged = _checked_defaults(workload, scenario, known) | dict(given)
    resolved: dict[str, Any] = {}
    for owner in used:
        resolved |= as_settings(owner, make_params(owner, known[owner], merged))
    return workload, resolved


def check_engine_settings(engine: str | None, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting of another engine than the chosen one (None: the default)."""
    chosen = engine or DEFAULT_ENGINE
    for other, kind in ENGINES.items():
        given = own_settings(kind.part, settings) if other != chosen else {}
        for name, value in given.items():
            if value != getattr(imported(kind.params)(), name):
                raise UsageError(
                    f"{kind.part}.{name} = {value!r}: engine {chosen} has no such "
                    "setting; leave it out"
                ).of(f"{kind.part}.{name}", "engine")


def _owners(settings: Mapping[str, Any]) -> list[str]:
    """Return the distinct names before the dots. Raises UsageError for a key without a dot."""
    for key, value in settings.items():
        if "." not in key:
            if key in {*parts(), *workload_names()}:
                raise UsageError(f"settings.{key} = {value!r}: must be a table").of(key)
            known = {f"{name}.{key}": name for name in parts()}
            raise unknown_name("setting", key, known).of(key)
    return list(dict.fromkeys(key.split(".", 1)[0] for key in settings))


def _unknown_owner(owner: str, workload: WorkloadSpec, known: Mapping[str, type]) -> UsageError:
    if owner in PAIRS:
        router, local = PAIRS[owner]
        return UsageError(
            f"{owner} is a pair of router and local scheduler: set the parameters of {router} "
            f"or of {local} instead"
        )
    return unknown_name("part in a setting", owner, {*known, workload.name, *workload_names()})


def _checked_defaults(
    workload: WorkloadSpec, scenario: str, known: Mapping[str, type]
) -> dict[str, Any]:
    """Return the workload file's scheduler parameters, after checking every key."""
    defaults = current_keys(workload.scheduler_settings(scenario))
    for owner in _owners(defaults):
        if owner not in known:
            raise unknown_name(f"part in the settings of workload {workload.name}", owner, known)
        check_names(owner, known[owner], own_settings(owner, defaults))
    return defaults
