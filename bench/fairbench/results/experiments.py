"""Stored experiments: the names of a sweep's experiments, and differences between them.

A stored experiment contains the values that the user chose and the default values. The manifest's
entry ``chosen`` lists the keys of the values that the user chose. Experiments that differ only in
defaults count as one experiment, because a new version may have changed a default. Without the
entry ``chosen``, a value counts as chosen unless it equals the workload's value, the present
default or the default in ``FORMER``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.origins import OF_THE_WORKLOAD, PROFILE, with_given
from fairbench.config.resolve import resolve
from fairbench.config.serving import SCHEDULING
from fairbench.config.settings import as_toml, flat_settings, flat_values
from fairbench.config.spec import GIVEN, experiment_tables, file_tables, without_given
from fairbench.hardware.engines import DISAGGREGATION
from fairbench.results.summary import cluster_name, scheduler_name
from fairbench.workloads.spec import load_workload, workload_names

SCHEDULER_KEYS = frozenset(
    {"scheduler", "router", "local", "gateway", "saturation", "routers"}
    | {"eviction", "memory_records", "engine_code", "charge_pass"}
)
OWN_POLICY = "schedule_policy"  # This key of ``backend`` holds the engine's scheduling policy.
# The keys ``OF_THE_PLACE`` describe the engine and the cluster, not the scheduler.
OF_THE_PLACE = frozenset({"engine", "vllm", "lightllm", DISAGGREGATION})
# The keys ``OF_THE_REPORT`` only change how an experiment is reported.
OF_THE_REPORT = frozenset({"tag", "percentiles", "preset", GIVEN})

DEFAULT = "default"  # This text is shown for a value that an experiment omits.

Experiment = Mapping[str, Any]
"""The tables of a file ``experiment.toml``."""


def place_of(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's configuration: everything but its scheduler and report options.

    Experiments with equal configurations are compared with each other.
    """
    kept = {k: v for k, v in experiment.items() if k not in SCHEDULER_KEYS | OF_THE_REPORT}
    if "backend" in kept:
        kept["backend"] = {k: v for k, v in kept["backend"].items() if k != OWN_POLICY}
    settings = experiment.get("settings", {})
    return kept | {"settings": {k: v for k, v in settings.items() if k in OF_THE_PLACE}}


def scheduler_of(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's scheduler, router and local scheduler, with all their parameters.

    The scheduling policy of the experiment's engine counts as a parameter of the scheduler.
    """
    kept = {k: v for k, v in experiment.items() if k in SCHEDULER_KEYS}
    policy = experiment.get("backend", {}).get(OWN_POLICY)
    kept |= {} if policy is None else {OWN_POLICY: policy}
    settings = experiment.get("settings", {})
    return kept | {"settings": {k: v for k, v in settings.items() if k not in OF_THE_PLACE}}


def key_of(part: Mapping[str, Any]) -> str:
    """Return a hash of tables; equal tables have equal hashes."""
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


class Label(NamedTuple):
    """The name of an experiment in a sweep, without the seed."""

    place: str
    scheduler: str


def grid_labels(experiments: Sequence[Experiment]) -> list[Label]:
    """Return the names of each experiment's configuration and scheduler.

    Configurations have names like ``tot s1 dp 4``, without the seed. If two configurations or
    schedulers would have equal names, the keys in which they differ are added to the names.
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
    """Return a name for each experiment, made of its configuration, scheduler and seed."""
    named = grid_labels([experiment_tables(spec) for spec in specs])
    return [
        f"{place}, {scheduler}, seed {spec.seed}"
        for (place, scheduler), spec in zip(named, specs, strict=True)
    ]


def _told_apart(names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Make equal names distinct: append ``KEY=VALUE`` for each key whose values differ."""
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
    """Return the differences between two experiments, each as ``KEY = VALUE (not VALUE)``."""
    ours, theirs = as_toml(one), as_toml(other)
    return [
        f"{key} = {ours.get(key, DEFAULT)} (not {theirs.get(key, DEFAULT)})"
        for key in sorted(ours | theirs)
        if ours.get(key) != theirs.get(key)
    ]


CHOSEN = "chosen"  # key of the manifest that lists the values chosen by the user
WHERE = "CHANGELOG.md"
WORKLOAD = "workload."
WITHOUT_DEFAULT = ("backend.", "workload.name", "workload.program")
GIVEN_AGAIN = {*OF_THE_WORKLOAD, "client_weights", "settings"}
# The flag ``--set`` can change only the workload values whose keys contain one of these strings.
SET_BY_FLAG = (".params.", ".misbehaving")

FORMER: Mapping[str, Collection[str]] = {
    PROFILE: {"tp1/sglang-0.5.10"},
    "engine.max_running_requests": {"2048"},
}
"""Defaults (TOML texts by key) of versions whose manifests lack the entry ``chosen``."""


class SpecChanges(NamedTuple):
    """Differences between two experiments, divided into values that the user chose and defaults."""

    by_choice: list[str]
    by_default: list[str]


def chosen_of(spec: ExperimentSpec) -> list[str]:
    """Return the keys of the values that the user set instead of using the default."""
    return chosen_keys(file_tables(spec))


def chosen_keys(file: Mapping[str, Any]) -> list[str]:
    """Return the keys of the values that the user set, from the tables of an experiment file.

    The key ``workload`` stands for all values of a workload that is not bundled with fairbench.
    """
    file = with_given(file)
    given, experiment = file[GIVEN], without_given(file)
    own = f"{experiment['workload'].get('name')}."
    weights = dict(flat_values({"weights": given.get("weights") or {}}))
    values = {**flat_settings(given["settings"]), **weights}
    found = [key for key in values if not key.startswith(own)]
    found += [key for key in OF_THE_WORKLOAD if key in given]
    if _profile({"gpu": given.get("gpu", "")}):
        found.append(PROFILE)
    changed = "workload" not in given or any(key.startswith(own) for key in values)
    return sorted([*found, *(_chosen_of_workload(experiment) if changed else ())])


def old_defaults(spec: ExperimentSpec) -> list[str]:
    """Return ``KEY OLD -> NEW`` for each default that has changed since an experiment was stored.

    A stored experiment keeps the old defaults when the user runs it again.
    """
    today = resolve({}, {}, file_tables(spec), new_defaults=True)
    tables = experiment_tables(spec), experiment_tables(today)
    return spec_changes(tables[0], chosen_of(spec), tables[1], chosen_of(today)).by_default


def spec_changes(
    before: Experiment, chosen_before: Any, after: Experiment, chosen_after: Any
) -> SpecChanges:
    """Return the values (keys of the experiment files) in which two experiments differ.

    ``chosen_before`` and ``chosen_after`` are the lists of chosen keys in the experiments'
    manifests, if any. Values that neither experiment uses, such as the rate of another scenario,
    are not compared.
    """
    sides = used_values(before), used_values(after)
    chosen = _chosen(before, chosen_before) | _chosen(after, chosen_after)
    found, replaced = SpecChanges([], []), any("request_rate" in side for side in sides)
    apart = _parts_of_key(before) ^ _parts_of_key(after)
    for key in sorted(sides[0] | sides[1]):
        old, new = (side.get(key, DEFAULT) for side in sides)
        if old == new or (key.endswith(".rate") and replaced):
            continue
        if DEFAULT in (old, new) and key.partition(".")[0] in apart:
            # Ignore a parameter that only one of the two schedulers has.
            continue
        by_choice = key in chosen or (key.startswith(WORKLOAD) and "workload" in chosen)
        has_default = "." in key or key == PROFILE or key in OF_THE_WORKLOAD
        if has_default and not by_choice and not key.startswith(WITHOUT_DEFAULT):
            found.by_default.append(f"{_readable_key(key, after)} {old} -> {new}")
        else:
            found.by_choice.append(f"{key} = {old} (not {new})")
    return found


def _parts_of_key(experiment: Experiment) -> set[str]:
    return {str(experiment.get(key)) for key in SCHEDULING}


def used_values(experiment: Experiment) -> dict[str, str]:
    """Return the values that determine an experiment's records: TOML text by dotted key (``a.b``).

    The returned values do not include the experiment's tag and descriptions. The key ``gpu``
    contains GPU and model of the timing profile, and the key ``PROFILE`` contains the rest of the
    profile's id.
    """
    apart = ("tag", "settings", "workload")
    values = as_toml({k: v for k, v in experiment.items() if k not in apart})
    values |= as_toml({"settings": flat_settings(experiment.get("settings", {}))})
    values |= _profile(experiment)
    workload, name = dict(experiment["workload"]), experiment["scenario"]
    scenarios = workload.pop("scenarios", {})
    used = name if name in scenarios else "s1" if "s1" in scenarios else next(iter(scenarios), "")
    scenario = dict(scenarios.get(used, {}))
    calm = [] if name == used else ["misbehaving"]
    for table, left_out in ((workload, GIVEN_AGAIN), (scenario, ("settings", *calm))):
        for key in ("description", *left_out):
            table.pop(key, None)
    return values | as_toml({"workload": workload | {"scenarios": {used: scenario}}})


def _chosen(experiment: Experiment, told: Any) -> set[str]:
    """Return the configuration keys that the user set; recent manifests list them in ``told``.

    If an older manifest does not list user-set keys, infer them from the experiment's values.
    """
    if isinstance(told, list):
        return {str(key) for key in told}
    values = used_values(experiment)
    return {
        key
        for key in chosen_keys(experiment)
        if values.get(key) not in FORMER.get(key, ())
        and (not key.startswith(WORKLOAD) or any(part in key for part in SET_BY_FLAG))
    }


def _chosen_of_workload(experiment: Experiment) -> list[str]:
    name = experiment["workload"].get("name")
    if name not in workload_names():
        return ["workload"]
    ours = load_workload(name).model_dump(mode="json", exclude_none=True)
    usual = used_values({**experiment, "workload": ours})
    values = used_values(experiment)
    return [
        key
        for key in values | usual
        if key.startswith(WORKLOAD) and values.get(key) != usual.get(key)
    ]


def _readable_key(key: str, experiment: Experiment) -> str:
    """Return a key in readable form, such as ``tot s1 rate`` for a key of the workload ``tot``."""
    workload = str(experiment["workload"].get("name"))
    if key in OF_THE_WORKLOAD:
        return f"{workload} {key}"
    if not key.startswith(WORKLOAD):
        return key
    inside = key.removeprefix(WORKLOAD).removeprefix("scenarios.").removeprefix("params.")
    return f"{workload} {inside.replace('.params.', ' ').replace('.', ' ')}"


def _profile(experiment: Experiment) -> dict[str, str]:
    gpu, model, *source = f"{experiment.get('gpu')}//".split("/", 2)
    rest = "".join(source).strip("/")
    return {"gpu": f"{gpu}/{model}", PROFILE: rest} if rest else {}
