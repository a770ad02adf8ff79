"""Presets: the documented settings of another paper's experiments, as files in ``presets/``.

A preset lies between the defaults and the user's values: it overrides defaults, also those of the
workload; flags and experiment files override the preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fairbench.config.backend import BackendConfig
from fairbench.config.settings import flat_settings
from fairbench.config.spec import Draft, ExperimentSpec
from fairbench.errors import DataError, UsageError, of_file, unknown_name
from fairbench.files.toml_text import bundled_names, file_of, read_toml
from fairbench.workloads.model import WorkloadSpec

RATE_PER_REPLICA = "rate_per_replica"
"""The key of a fact: programs/s of each well-behaved client for each replica."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Fact(_Table):
    """A value that the paper's authors used, and its source.

    ``key`` is a key of an experiment file, a setting ``NAME.PARAM``, or ``rate_per_replica``.
    """

    key: str
    value: bool | int | float | str
    source: str


class Unserved(_Table):
    """The reason why a preset excludes a workload unless the key ``unless`` is set."""

    unless: str
    because: str


class Preset(_Table):
    """The facts of a paper's experiments; ``workloads`` are the excluded ones."""

    name: str
    description: str
    paper: str
    workloads: dict[str, Unserved] = {}
    facts: Annotated[list[Fact], Field(min_length=1)]

    @property
    def values(self) -> dict[str, Any]:
        """The facts as keys of an experiment file, and as settings ``NAME.PARAM``."""
        return {one.key: one.value for one in self.facts if one.key != RATE_PER_REPLICA}

    @property
    def experiment(self) -> dict[str, Any]:
        """The facts that are keys of an experiment file, without settings."""
        return {key: value for key, value in self.values.items() if "." not in key}

    @property
    def settings(self) -> dict[str, Any]:
        """The facts that are settings, ``NAME.PARAM``."""
        return {key: value for key, value in self.values.items() if "." in key}

    @property
    def rate_per_replica(self) -> float | None:
        """Programs/s of each well-behaved client per replica; None if unknown."""
        found = [one.value for one in self.facts if one.key == RATE_PER_REPLICA]
        return float(found[0]) if found else None


def preset_names() -> list[str]:
    """Return the names of the bundled presets in alphabetical order."""
    return bundled_names(files(__package__) / "presets")


@cache
def read_preset(ref: str) -> Preset:
    """Read a preset by bundled name, or by path if ``ref`` has a slash or ends in .toml.

    Raises UsageError for an unknown name, DataError (file, line or key) for a wrong file.
    """
    file, shown = file_of("preset", ref, files(__package__) / "presets")
    data = read_toml(file, shown)
    with of_file(shown, Preset.model_fields):
        preset = Preset.model_validate({"name": Path(shown).stem, **data})
    for key in preset.experiment:
        if key not in ExperimentSpec.model_fields:
            raise DataError(f"{shown}: {unknown_name('key', key, ExperimentSpec.model_fields)}")
    return preset


def without_preset(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an experiment file that has a preset, without what the preset implies."""
    preset = read_preset(str(file["preset"]))
    single, settings = preset.values, flat_settings(file.get("settings", {}))
    kept = {k: v for k, v in file.items() if k == "settings" or single.get(k) != v}
    if "gpu" in kept and str(kept["gpu"]).startswith(str(single.get("gpu"))):
        del kept["gpu"]
    kept["settings"] = {k: v for k, v in settings.items() if single.get(k) != v}
    return kept


def preset_for(ref: str, backend: BackendConfig | None) -> Preset:
    """Return a preset by name or path. Raises UsageError for a real backend."""
    preset = read_preset(ref)
    if backend is not None:
        raise UsageError(
            f"preset = {preset.name!r}: presets need the simulator; leave --backend out"
        )
    return preset


def check_preset(preset: Preset, draft: Draft, workload: str) -> None:
    """Raise UsageError for values of the user that contradict a preset."""
    described = preset.values.get("engine")
    engine = draft["engine"] if draft.is_said("engine") else described
    if described is not None and engine != described:
        raise UsageError(
            f"engine = {engine!r}: preset {preset.name} is for engine {described!r}; "
            "leave engine out, or choose another preset"
        )
    unserved = preset.workloads.get(workload)
    if unserved is not None and not draft.settings.is_said(unserved.unless):
        raise UsageError(f"workload = {workload!r}: preset {preset.name}: {unserved.because}")


def at_rate_of(preset: Preset, workload: WorkloadSpec) -> WorkloadSpec:
    """Return the workload with the preset's rate in every scenario, if it has one."""
    rate = preset.rate_per_replica
    if rate is None:
        return workload
    scenarios = {
        name: one.model_copy(update={"rate": rate, "rates": None})
        for name, one in workload.scenarios.items()
    }
    return workload.model_copy(update={"scenarios": scenarios})
