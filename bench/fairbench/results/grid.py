"""The grid of a sweep: configuration, scheduler and name of each point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.settings import as_toml
from fairbench.config.spec import GIVEN, experiment_tables
from fairbench.hardware.cluster_params import DISAGGREGATION
from fairbench.results.header import cluster_name, scheduler_name

SCHEDULER_KEYS = frozenset(
    {"scheduler", "router", "local", "gateway", "saturation", "routers"}
    | {"eviction", "memory_records"}
)
OWN_POLICY = "schedule_policy"  # a field of a backend
OF_THE_PLACE = frozenset(
    {"engine", "vllm", "lightllm", DISAGGREGATION}
)  # settings that do not belong to a scheduler

OF_THE_REPORT = frozenset({"tag", "percentiles", "preset", GIVEN})

DEFAULT = "default"  # value of a key that an experiment leaves out

Experiment = Mapping[str, Any]
"""The tables of an ``experiment.toml``."""


def place_of(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment without scheduler, scheduler parameters and report options.

    Experiments with equal results are compared with each other.
    """
    kept = {k: v for k, v in experiment.items() if k not in SCHEDULER_KEYS | OF_THE_REPORT}
    if "backend" in kept:
        kept["backend"] = {k: v for k, v in kept["backend"].items() if k != OWN_POLICY}
    settings = experiment.get("settings", {})
    return kept | {"settings": {k: v for k, v in settings.items() if k in OF_THE_PLACE}}


def scheduler_of(experiment: Experiment) -> dict[str, Any]:
    """Return the scheduler part: scheduler, router, local scheduler, parameters, policy."""
    kept = {k: v for k, v in experiment.items() if k in SCHEDULER_KEYS}
    policy = experiment.get("backend", {}).get(OWN_POLICY)
    kept |= {} if policy is None else {OWN_POLICY: policy}
    settings = experiment.get("settings", {})
    return kept | {"settings": {k: v for k, v in settings.items() if k not in OF_THE_PLACE}}


def key_of(part: Mapping[str, Any]) -> str:
    """Return a hash that equal tables have in common."""
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


class Label(NamedTuple):
    """The name of a grid point, without its seed."""

    place: str
    scheduler: str


def labels(experiments: Sequence[Experiment]) -> list[Label]:
    """Return, for each experiment, the names of its configuration and of its scheduler.

    Configurations are named like ``tot s1 dp 4``, followed by the keys that distinguish
    configurations with equal names. Schedulers have their names, followed by the parameters that
    distinguish those with equal names at a configuration. Seeds do not appear: a configuration has
    the same name under every seed.
    """
    names = [f"{e['workload']['name']} {e['scenario']} {cluster_name(e)}" for e in experiments]
    places = _told_apart(names, [{**place_of(e), "seed": None} for e in experiments])
    detectors = {e["saturation"] for e in experiments if "saturation" in e}
    called = [scheduler_name(e, detector=len(detectors) > 1) for e in experiments]
    named = [f"{place}\n{name}" for place, name in zip(places, called, strict=True)]
    schedulers = _told_apart(named, [scheduler_of(e) for e in experiments])
    return [
        Label(place, scheduler.removeprefix(f"{place}\n"))
        for place, scheduler in zip(places, schedulers, strict=True)
    ]


def point_names(specs: Sequence[ExperimentSpec]) -> list[str]:
    """Return the names of a sweep's points: configuration, scheduler and seed."""
    named = labels([experiment_tables(spec) for spec in specs])
    return [
        f"{place}, {scheduler}, seed {spec.seed}"
        for (place, scheduler), spec in zip(named, specs, strict=True)
    ]


def _told_apart(names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Add ``KEY=VALUE`` to each name for every key that varies among tables of that name."""
    texts = [as_toml(table) for table in tables]
    alike: dict[str, list[dict[str, str]]] = {}
    for name, row in zip(names, texts, strict=True):
        alike.setdefault(name, []).append(row)
    varying = {}
    for name, rows in alike.items():
        keys = sorted({key for row in rows for key in row})
        several = (key for key in keys if len({row.get(key, DEFAULT) for row in rows}) > 1)
        varying[name] = list(several)
    return [
        " ".join([name, *(f"{key}={row.get(key, DEFAULT)}" for key in varying[name])])
        for name, row in zip(names, texts, strict=True)
    ]


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Return ``KEY = VALUE (not VALUE)`` for each difference between two experiments."""
    ours, theirs = as_toml(one), as_toml(other)
    return [
        f"{key} = {ours.get(key, DEFAULT)} (not {theirs.get(key, DEFAULT)})"
        for key in sorted(ours | theirs)
        if ours.get(key) != theirs.get(key)
    ]
