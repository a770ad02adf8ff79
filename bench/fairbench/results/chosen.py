"""Separation of a stored experiment's explicit values from the defaults of its version.

A stored experiment spells out every value. Runs of one command under two versions differ in
unchosen values whose defaults changed. Such runs belong to one experiment, but the defaults
explain why numbers moved. A manifest lists the chosen values (``chosen``), as the experiment's
table ``given`` has them. For a run without that list, a value counts as chosen if neither its
workload, today's defaults, nor ``FORMER`` ones explain it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.defaults import without_defaults
from fairbench.config.resolve import resolve
from fairbench.config.serving import SCHEDULING
from fairbench.config.settings import as_toml, flat, flat_settings
from fairbench.config.spec import experiment_tables, file_tables
from fairbench.results.grid import DEFAULT, Experiment
from fairbench.workloads.spec import load_workload, workload_names

CHOSEN = "chosen"  # a key of a manifest
WHERE = "CHANGELOG.md"
WORKLOAD = "workload."
PROFILE = "timing profile"  # further parts of a profile's id, besides GPU and model
# keys that are repeated outside the workload
OF_THE_WORKLOAD = ("clients", "duration_s", "warmup_s", "max_drain_s")
GIVEN_AGAIN = {*OF_THE_WORKLOAD, "client_weights", "settings"}
SET_BY_FLAG = (".params.", ".misbehaving")  # values inside a workload that ``--set`` changes

FORMER: Mapping[str, Collection[str]] = {
    PROFILE: {"tp1/sglang-0.5.10"},
    "engine.max_running_requests": {"2048"},
}
"""Former defaults, as TOML, from before manifests listed the chosen values."""


class SpecChanges(NamedTuple):
    """Differences of two experiments, written ``KEY = OLD (not NEW)`` or ``KEY OLD -> NEW``."""

    by_choice: list[str]
    by_default: list[str]


def chosen_of(spec: ExperimentSpec) -> list[str]:
    """Return the keys of ``used_values`` that have defaults and that somebody chose.

    ``workload`` alone stands for a whole workload that is not bundled.
    """
    experiment, given = experiment_tables(spec), spec.given
    if given is None:
        return chosen_keys(experiment)
    own = f"{spec.workload.name}."
    values = {**given["settings"], **dict(flat({"weights": given.get("weights") or {}}))}
    found = [key for key in values if not key.startswith(own)]
    found += [key for key in OF_THE_WORKLOAD if key in given]
    if _profile({"gpu": given.get("gpu", "")}):
        found.append(PROFILE)
    changed = "workload" not in given or any(key.startswith(own) for key in values)
    return sorted([*found, *(_chosen_of_workload(experiment) if changed else ())])


def old_defaults(spec: ExperimentSpec) -> list[str]:
    """Return ``KEY OLD -> NEW`` for each value that nobody chose and that is no default today.

    A stored experiment keeps such values when it runs again.
    """
    today = resolve({}, {}, file_tables(spec), new_defaults=True)
    tables = experiment_tables(spec), experiment_tables(today)
    return spec_changes(tables[0], chosen_of(spec), tables[1], chosen_of(today)).by_default


def given_by(experiment: Experiment, chosen: Collection[str]) -> dict[str, Any]:
    """Return the table ``given`` of an experiment that was stored without it, by chosen keys."""
    settings = flat_settings(experiment["settings"])
    weights = experiment.get("weights", {})
    gpu = experiment["gpu"] if PROFILE in chosen else experiment["gpu"].partition("/")[0]
    whole = any(key.startswith("workload") for key in chosen)
    return {
        **{key: experiment[key] for key in ("model", "engine") if key in experiment},
        **{key: experiment[key] for key in OF_THE_WORKLOAD if key in chosen},
        "gpu": gpu,
        "weights": {name: one for name, one in weights.items() if f"weights.{name}" in chosen},
        **({} if whole else {"workload": experiment["workload"]["name"]}),
        "settings": {key: value for key, value in settings.items() if key in chosen},
    }


def chosen_keys(experiment: Experiment) -> list[str]:
    """Return the chosen keys of an experiment that was stored without ``given``.

    A key counts as chosen if its value differs from today's default.
    """
    kept = without_defaults(experiment)
    values = {**kept.get("settings", {}), **dict(flat({"weights": kept.get("weights") or {}}))}
    found = [*values, *(key for key in OF_THE_WORKLOAD if key in kept)]
    if kept.get("gpu") == experiment.get("gpu") and _profile(experiment):
        found.append(PROFILE)
    return sorted([*found, *_chosen_of_workload(experiment)])


def spec_changes(
    before: Experiment, chosen_before: Any, after: Experiment, chosen_after: Any
) -> SpecChanges:
    """Return how two experiments differ, given the ``chosen`` keys of their manifests.

    A value that affects no records of either experiment, such as the rate of another scenario,
    counts as no difference.
    """
    sides = used_values(before), used_values(after)
    chosen = _chosen(before, chosen_before) | _chosen(after, chosen_after)
    found, replaced = SpecChanges([], []), any("request_rate" in side for side in sides)
    apart = _parts(before) ^ _parts(after)
    for key in sorted(sides[0] | sides[1]):
        old, new = (side.get(key, DEFAULT) for side in sides)
        if old == new or (key.endswith(".rate") and replaced):
            continue
        if DEFAULT in (old, new) and key.partition(".")[0] in apart:
            continue  # a parameter of a scheduler that only one side has
        whole = key.startswith(WORKLOAD) and "workload" in chosen
        if _has_default(key) and key not in chosen and not whole:
            found.by_default.append(f"{_name(key, after)} {old} -> {new}")
        else:
            found.by_choice.append(f"{key} = {old} (not {new})")
    return found


def _parts(experiment: Experiment) -> set[str]:
    return {str(experiment.get(key)) for key in SCHEDULING}


def used_values(experiment: Experiment) -> dict[str, str]:
    """Return the values that determine an experiment's records, as TOML by flat key.

    Tag and descriptions are excluded. ``gpu`` is only GPU and model; the rest of the profile's name
    is under ``PROFILE``.
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
    """Return the chosen keys, from the manifest if present, else from the values."""
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


def _has_default(key: str) -> bool:
    """Return whether another part provides a default for a value that was not set."""
    if key.startswith(("backend.", "workload.name", "workload.program")):
        return False
    return "." in key or key == PROFILE or key in OF_THE_WORKLOAD


def _name(key: str, experiment: Experiment) -> str:
    """Return a key for people: ``tot s1 rate`` for a key inside the workload."""
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
