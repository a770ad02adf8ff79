"""From what the user said to a full spec: defaults, then the file, then the flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fairbench.config.settings import resolve_settings
from fairbench.config.spec import ExperimentSpec, flat_settings
from fairbench.config.toml import read_toml
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.schedulers.registry import locals_by_name, pair_name, routers_by_name, split_pair
from fairbench.sim.timing import resolve_profile
from fairbench.validation import explain
from fairbench.workloads.spec import WorkloadSpec, load_workload

DEFAULTS: Mapping[str, Any] = {
    "scheduler": "d2lpm",
    "dp": 1,
    "workload": "tot",
    "scenario": "s1",
    "gpu": "a100",
    "model": "llama-3.1-8b",
    "seed": 0,
    "burstiness": 1.0,
}

WARMUP_SHARE = 0.1  # of a duration that the user chose; a workload's own may not fit into it


def read_experiment(path: Path) -> dict[str, Any]:
    """The keys of an experiment file. Raises DataError naming the file and the key or line."""
    data = read_toml(path)
    for key in data:
        if key not in ExperimentSpec.model_fields:
            wrong = unknown_name("key", key, ExperimentSpec.model_fields)
            raise DataError(f"{path}: {wrong}")
    if not isinstance(data.get("settings", {}), dict):
        raise DataError(f"{path}: settings: must be a table, such as [settings.dlpm]")
    return data


def resolve(
    flags: Mapping[str, Any],
    assignments: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
    *,
    path: Path | None = None,
) -> ExperimentSpec:
    """The full spec. ``flags`` override the keys of ``file``, ``assignments`` its settings.

    All three hold only what was given; ``path`` is where ``file`` was read. Raises UsageError with
    one line that names the field, its value and what is allowed.
    """
    file = file or {}
    draft = {**DEFAULTS, **_not_overridden(file, flags), **flags}
    settings = flat_settings(draft.pop("settings", {})) | dict(assignments or {})
    router, local = _parts(draft)
    workload = _workload(draft["workload"])
    workload, resolved = resolve_settings(
        workload, _text(draft, "scenario"), router, local, settings
    )
    profile = resolve_profile(_text(draft, "gpu"), _text(draft, "model"))
    draft |= {
        "scheduler": pair_name(router, local),
        "router": router,
        "local": local,
        "gpu": profile.profile_id,
        "settings": resolved,
        "workload": workload,
    }
    try:
        return ExperimentSpec.model_validate(_times(draft, workload) | draft)
    except ValidationError as error:
        field = error.errors()[0]["loc"][:1]
        if path and field and field[0] in file.keys() - flags.keys():
            raise DataError(f"{path}: {explain(error)}") from None
        raise UsageError(explain(error)) from None


def _not_overridden(file: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """A ``--scheduler`` flag names both halves, so it overrides the halves of the file too."""
    dropped = {"router", "local"} if "scheduler" in flags else set()
    return {key: value for key, value in file.items() if key not in dropped}


def _parts(draft: Mapping[str, Any]) -> tuple[str, str]:
    router, local = split_pair(_text(draft, "scheduler"))
    router = _text(draft, "router") if "router" in draft else router
    local = _text(draft, "local") if "local" in draft else local
    for what, name, known in (
        ("router", router, routers_by_name()),
        ("local scheduler", local, locals_by_name()),
    ):
        if name not in known:
            raise unknown_name(what, name, known)
    return router, local


def _workload(value: Any) -> WorkloadSpec:
    """A workload by name or path, or the whole of it as a table of the experiment file."""
    if isinstance(value, str):
        return load_workload(value)
    if not isinstance(value, Mapping | WorkloadSpec):
        raise UsageError(f"workload = {value!r}: must be a name, a path or a table")
    try:
        return WorkloadSpec.model_validate(value)
    except ValidationError as error:
        raise UsageError(explain(error, "workload")) from None


def _times(draft: Mapping[str, Any], workload: WorkloadSpec) -> dict[str, Any]:
    """The workload's own number of clients and times, where nothing else follows from the rest.

    A number of programs lifts the default duration. A workload's warm-up is made for the
    workload's duration, so another duration has a warm-up of ``WARMUP_SHARE`` of it at most.
    """
    times = {
        "clients": workload.clients,
        "warmup_s": workload.warmup_s,
        "max_drain_s": workload.max_drain_s,
    }
    if "duration_s" not in draft and "num_programs" not in draft:
        times["duration_s"] = workload.duration_s
    chosen_s = draft.get("duration_s")
    if isinstance(chosen_s, int | float) and 0 < chosen_s < math.inf:
        times["warmup_s"] = min(workload.warmup_s, WARMUP_SHARE * chosen_s)
    return times


def _text(draft: Mapping[str, Any], key: str) -> str:
    value = draft[key]
    if not isinstance(value, str):
        raise UsageError(f"{key} = {value!r}: must be a text")
    return value
