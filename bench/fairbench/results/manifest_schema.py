"""The schema of a stored manifest, which may have been edited or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fairbench.errors import of_file


class _Stored(BaseModel):
    model_config = ConfigDict(strict=True)


class _Git(_Stored):
    commit: str
    dirty: bool


class _Manifest(_Stored):
    git: _Git | None = None
    spec_identity: str = ""
    scheduler_files: dict[str, str] = {}
    program_files: dict[str, str] = {}
    cost_files: dict[str, str] = {}
    libraries: dict[str, str | None] = {}
    host: dict[str, str | None] = {}
    wall_s: float | None = None
    cpu_s: float | None = None


def check_manifest(manifest: Mapping[str, Any], path: Path) -> None:
    """Raise DataError naming the field of a manifest that has another type than it must have."""
    with of_file(f"{path}"):
        _Manifest.model_validate(manifest)
