"""The values of an experiment that somebody chose, apart from those that have a default.

A stored experiment spells out every value, so that a run can be repeated. Its table ``given`` has
the values that flags, settings or a file set; all others are defaults of the version that stored
the file. If flags replace a value on which defaults depend, and in a gate, the defaults are
computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.defaults import DEFAULTS, table_of, without_defaults
from fairbench.config.preset import read_preset
from fairbench.config.settings import current_keys, flat_settings, parts
from fairbench.config.spec import DIGEST, GIVEN, digest_of, without_given
from fairbench.workloads.spec import workload_names

AS_STORED = "as stored"  # a given workload that is not bundled: the stored table itself
ALWAYS_STORED = ("router", "local", "warmup_s", "settings", "max_drain_s", "clients", "burstiness")
# keys that other keys imply; all other keys of a stored experiment count as chosen
IMPLIED = frozenset(
    {"gpu", "model", "engine", "clients", "duration_s", "warmup_s", "max_drain_s", "weights"}
)
NOT_RECORDED = frozenset({"settings", "tag", "backend", "workload"})
TABLES = frozenset({"weights", "goodput"})  # of which a flag overrides single entries


def is_complete(file: Mapping[str, Any]) -> bool:
    """Return whether an experiment file spells out every value, as stored files do."""
    return all(key in file for key in ALWAYS_STORED)


def is_edited(file: Mapping[str, Any]) -> bool:
    """Return whether a stored file was changed by hand since fairbench wrote it."""
    return bool(file[GIVEN].get(DIGEST) != digest_of(file))


def chosen_part(file: Mapping[str, Any], *, other_workload: bool = False) -> Mapping[str, Any]:
    """Return an experiment file without the values that nobody chose.

    Files of versions without the table ``given``, and files edited by hand, are compared with
    today's defaults. With ``other_workload``, parameters of the stored workload are left out.
    """
    if GIVEN not in file:
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


def _kept_keys(given: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the top-level keys that are no defaults; the workload by name if it is bundled."""
    implied = set(IMPLIED)
    if "preset" in rest:
        implied |= read_preset(str(rest["preset"])).experiment.keys()
    kept = {key: value for key, value in rest.items() if key in given or key not in implied}
    gpu = str(given.get("gpu", ""))
    if gpu and str(rest.get("gpu")).startswith(gpu):
        kept["gpu"] = gpu
    if "weights" in given:
        kept["weights"] = given["weights"]
    if given["workload"] != AS_STORED:
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
    if is_complete(flags) or (is_complete(file) and GIVEN not in file):
        return None
    base = chosen_part(file, other_workload="workload" in flags)
    known = file[GIVEN] if GIVEN in file and not is_edited(file) else base
    below = {key: value for key, value in base.items() if key in known}
    found = {key: one for key, one in (below | flags).items() if key not in NOT_RECORDED}
    for table in TABLES.intersection(found):
        found[table] = table_of(below, table) | table_of(flags, table)
    workload = flags.get("workload", base.get("workload", DEFAULTS["workload"]))
    is_bundled = isinstance(workload, str) and workload in workload_names()
    found["workload"] = workload if is_bundled else AS_STORED
    settings = flat_settings(table_of(base, "settings")) | current_keys(assignments)
    return {**dict(sorted(found.items())), "settings": dict(sorted(settings.items()))}
