"""Origins of values: which values of an experiment the user chose, and which are defaults.

A stored experiment contains every value, even defaults, so that a run can be repeated. The table
``given`` of a stored experiment contains the values that came from flags or a file. Values that
``given`` lacks are defaults of the fairbench version that stored the file; ``fairbench baseline``
recomputes these values. If a flag replaces a value, every command recomputes the defaults that
depend on this value. If a stored file lacks the table ``given``, the table is added when the file
is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from fairbench.config.defaults import (
    DEFAULTS,
    machine_of_workload,
    read_preset,
    read_workload,
    resolve_weights,
    table_of,
    text_of,
    used_parts,
    usual_scenario,
    workload_defaults,
)
from fairbench.config.settings import current_keys, flat_settings, params_by_part, resolve_settings
from fairbench.config.spec import DIGEST, GIVEN, digest_of, without_given
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import resolve_profile
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import workload_names

ALWAYS_STORED = ("router", "local", "warmup_s", "settings", "max_drain_s", "clients", "burstiness")
# The values of the keys ``IMPLIED`` follow from other keys, so the user never chose these values.
IMPLIED = frozenset(
    {"gpu", "model", "engine", "clients", "duration_s", "warmup_s", "max_drain_s", "weights"}
)
NOT_RECORDED = frozenset({"settings", "tag", "backend", "workload", GIVEN})
TABLES = frozenset({"weights", "goodput"})

# A manifest lists ``PROFILE`` under ``chosen`` if the user named the timing profile itself, not
# only a GPU and a model.
PROFILE = "timing profile"
# The keys ``OF_THE_WORKLOAD`` may be set in a workload file or in an experiment file.
OF_THE_WORKLOAD = ("clients", "duration_s", "warmup_s", "max_drain_s")


def with_given(file: Mapping[str, Any], chosen: Collection[str] | None = None) -> Mapping[str, Any]:
    """Return an experiment file's content with a table ``given`` of values that the user chose.

    If an experiment file has no table ``given``, the function infers the values that the user
    chose. ``chosen`` lists the keys of the chosen values if an older version stored these keys in
    the manifest. Without ``chosen``, the values of a stored file that differ from defaults count as
    chosen. All values of a file that the user wrote count as chosen.
    """
    if _has_given(file) and not is_edited(file):
        return file
    rest = without_given(file)
    if chosen is not None:
        given = _given_by_keys(rest, chosen)
    elif _has_given(file):
        # The user edited the stored file, so ``given`` also gets the changed values.
        found, stored = _unexplained(rest), file[GIVEN]
        settings = flat_settings(table_of(rest, "settings"))
        said = flat_settings(stored["settings"]).items()
        own = {key: settings.get(key, one) for key, one in said}
        given = {**found, **stored, "settings": {**found["settings"], **own}}
        given.pop("workload", None)
    else:
        given = _unexplained(rest) if _is_stored(rest) else _everything(rest)
    return {**rest, GIVEN: {**given, DIGEST: digest_of(rest)}}


def lacks_given(file: Mapping[str, Any]) -> bool:
    """Return whether a file is a stored experiment without the table ``given`` (chosen values)."""
    return _is_stored(file) and not _has_given(file)


def is_edited(file: Mapping[str, Any]) -> bool:
    """Return whether a stored file was edited, or lacks the table ``given`` of chosen values."""
    return not _has_given(file) or bool(file[GIVEN].get(DIGEST) != digest_of(file))


def _has_given(file: Mapping[str, Any]) -> bool:
    given = file.get(GIVEN)
    if not isinstance(given, Mapping) or not isinstance(given.get("settings"), Mapping):
        return False
    return isinstance(given.get("workload", ""), str)


def _is_stored(file: Mapping[str, Any]) -> bool:
    return all(key in file for key in ALWAYS_STORED)


def _given_by_keys(experiment: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """Return the values that the user chose, whose keys the manifest lists as ``chosen``."""
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


def _unexplained(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's values that are not defaults, or all values if the file is invalid."""
    try:
        return _everything(_without_defaults(file))
    except UsageError:
        return _everything(file)


def _everything(file: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in file.items() if key not in NOT_RECORDED}
    workload, settings = file.get("workload"), file.get("settings", {})
    if isinstance(workload, str) and workload in workload_names():
        found["workload"] = workload
    return {**found, "settings": flat_settings(settings) if isinstance(settings, Mapping) else {}}


def _without_defaults(file: Mapping[str, Any]) -> dict[str, Any]:
    preset = read_preset(str(file["preset"])).values if "preset" in file else {}
    workload = read_workload(file.get("workload", DEFAULTS["workload"]))
    usual: dict[str, Any] = {**machine_of_workload(workload), "scenario": usual_scenario(workload)}
    draft = {**DEFAULTS, **usual, **file}
    kept = _without_usual_times({k: v for k, v in file.items() if preset.get(k) != v}, workload)
    if "gpu" in kept:
        gpu = text_of(draft, "gpu").split("/")[0]
        # If the GPU's name alone selects the profile, store the name instead of the profile's id. A
        # UsageError means that the GPU's name selects no profile.
        with suppress(UsageError):
            if resolve_profile(gpu, text_of(draft, "model")).profile_id == draft["gpu"]:
                kept["gpu"] = gpu
    if _is_usual_machine(draft, workload):
        usual |= {key: kept.get(key) for key in ("gpu", "model")}
    if str(draft["gpu"]).startswith(str(preset.get("gpu"))):
        usual["gpu"] = kept.get("gpu")
    usual["weights"] = resolve_weights(workload, kept.get("clients"), {})
    kept = {key: value for key, value in kept.items() if usual.get(key) != value}
    _, implied = resolve_settings(workload, text_of(draft, "scenario"), used_parts(draft), {})
    implied |= preset
    settings = flat_settings(table_of(file, "settings"))
    kept["settings"] = {k: v for k, v in settings.items() if k not in implied or implied[k] != v}
    return kept


def _is_usual_machine(draft: Mapping[str, object], workload: WorkloadSpec) -> bool:
    usual = {**DEFAULTS, **machine_of_workload(workload)}
    with suppress(UsageError):
        profile = resolve_profile(usual["gpu"], usual["model"]).profile_id
        return bool((draft["gpu"], draft["model"]) == (profile, usual["model"]))
    return False


def _without_usual_times(file: Mapping[str, Any], workload: WorkloadSpec) -> dict[str, Any]:
    """Remove a file's warm-up, duration, drain limit and number of clients if they are defaults.

    The warm-up is checked again after the duration, because its default may depend on the duration.
    """
    kept = dict(file)
    whole = {**workload_defaults(file, workload), **file}
    for key in ("warmup_s", "duration_s", "warmup_s", "max_drain_s", "clients"):
        fewer = {name: value for name, value in kept.items() if name != key}
        if {**workload_defaults(fewer, workload), **fewer} == whole:
            kept = fewer
    return kept


def chosen_part(file: Mapping[str, Any], *, other_workload: bool = False) -> dict[str, Any]:
    """Return the values that the user chose in an experiment file that has the table ``given``.

    A bundled workload is returned by name, and any other workload is returned as a table. If
    ``other_workload`` is True, the result lacks the workload's parameters, and has the scenario
    only if the user chose it.
    """
    given, rest = file[GIVEN], without_given(file)
    implied = set(IMPLIED)
    if "preset" in rest:
        implied |= read_preset(str(rest["preset"])).experiment.keys()
    if other_workload:
        implied.add("scenario")
    kept = {key: value for key, value in rest.items() if key in given or key not in implied}
    gpu = str(given.get("gpu", ""))
    if gpu and str(rest.get("gpu")).startswith(gpu):
        kept["gpu"] = gpu
    kept |= {key: given[key] for key in ("weights", "workload") if key in given}
    settings, own = flat_settings(rest.get("settings", {})), flat_settings(given["settings"])
    if other_workload:
        own = {key: one for key, one in own.items() if key.partition(".")[0] in params_by_part()}
    kept["settings"] = {key: settings.get(key, value) for key, value in own.items()}
    return kept


def given_values(
    flags: Mapping[str, Any], assignments: Mapping[str, Any], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that the user chose for an experiment.

    Args:
        flags: Keys of an experiment file and their values, as set by the user's flags.
        assignments: Settings ``NAME.PARAM`` and their values, as set by the user's flags.
        file: Experiment file as returned by ``with_given``, or {} if there is no file; flags
            override values of the file.
    """
    if _is_stored(flags):  # The flags contain all values of a stored experiment.
        flags, file = {}, with_given(flags)
    base = chosen_part(file, other_workload="workload" in flags) if file else {}
    below = {key: value for key, value in base.items() if key in file[GIVEN]}
    found = {key: one for key, one in {**below, **flags}.items() if key not in NOT_RECORDED}
    for table in TABLES.intersection(found):
        found[table] = table_of(below, table) | table_of(flags, table)
    workload = flags.get("workload", base.get("workload", DEFAULTS["workload"]))
    if isinstance(workload, str) and workload in workload_names():
        found["workload"] = workload
    settings = flat_settings(table_of(base, "settings")) | current_keys(assignments)
    return {**dict(sorted(found.items())), "settings": dict(sorted(settings.items()))}
