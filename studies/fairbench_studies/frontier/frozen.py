"""The frontier study's scheduler pairs, workloads and seeds, fixed in files before the runs.

The file ``frozen.toml`` is for runs with default settings, and ``frozen_dlpm_paper.toml`` for runs
with the preset ``dlpm-paper``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from fairbench.errors import UsageError
from fairbench.files.formats import read_toml
from fairbench.files.reader import MIB, opened

NAME = "frontier"
FILES = {None: "frozen.toml", "dlpm-paper": "frozen_dlpm_paper.toml"}
"""The file of planned runs for each preset, and for the default settings (None)."""

PUBLISHED, CAPPED, TUNED = "published", "capped", "tuned"
FORMS = (PUBLISHED, CAPPED, TUNED)

Settings = dict[str, Any]


class Configuration(NamedTuple):
    """A pair of router and local scheduler in one form: published, capped or tuned."""

    pair: str
    form: str

    def __str__(self) -> str:
        return self.pair if self.form == PUBLISHED else f"{self.pair}, {self.form}"


class Cell(BaseModel):
    """A workload in a scenario, with its seeds in the order of the runs.

    ``full`` is the default number of seeds, and ``quick`` is the number with ``--quick``. Settings
    were tuned only in configurations of the part ``development``, never on ``test`` seeds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    part: Literal["development", "test"]
    workload: str
    scenario: str
    dp: Annotated[int, Field(ge=1)] = 4
    seeds: Annotated[tuple[int, ...], Field(min_length=1, strict=False)]
    full: Annotated[int, Field(ge=0)] = 3
    quick: Annotated[int, Field(ge=0)] = 0

    def __str__(self) -> str:
        return f"{self.workload} {self.scenario}"


class Frozen(BaseModel):
    """Settings of the study, which are written to a file before the study's first run.

    ``capped`` has the settings of all capped scheduler pairs, and ``tuned`` has the settings of
    each tuned pair. ``preset`` names the paper whose settings all runs use; None means default
    settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    preset: str | None = None
    ours: str
    pairs: list[str]
    margin: Annotated[float, Field(gt=0, lt=1)]
    level: Annotated[float, Field(gt=0, lt=1)]
    capped: Settings
    tuned: dict[str, Settings]
    cells: list[Cell]

    @property
    def name(self) -> str:
        """The name that the study's run directory, tables and figure share."""
        return f"{NAME}-{self.preset}" if self.preset else NAME

    @property
    def configurations(self) -> list[Configuration]:
        """The combinations of all scheduler pairs with all ``FORMS`` of their settings."""
        return [Configuration(pair, form) for pair in self.pairs for form in FORMS]

    def settings(self, configuration: Configuration) -> Settings:
        """Return the settings of a scheduler pair that differ from the workload's defaults."""
        of_form: dict[str, Settings] = {
            PUBLISHED: {},
            CAPPED: self.capped,
            TUNED: self.tuned[configuration.pair],
        }
        return of_form[configuration.form]


@lru_cache(maxsize=len(FILES))
def frozen(preset: str | None = None) -> Frozen:
    """Return the study's scheduler pairs, settings, workloads and seeds under a preset.

    A preset's file was complete before the first run on ``test`` seeds. Raises UsageError if the
    preset has no file in ``FILES``.
    """
    file = _file(preset)
    return Frozen.model_validate(read_toml(files(__package__) / file, file))


def digest(preset: str | None = None) -> str:
    """Return the SHA-256 hash of a frozen file, to detect changes."""
    file = _file(preset)
    with opened(files(__package__) / file, file) as stream:
        return hashlib.sha256(stream.read(MIB)).hexdigest()


def _file(preset: str | None) -> str:
    if preset not in FILES:
        known = ", ".join(one for one in FILES if one)
        raise UsageError(f"--preset {preset}: {NAME} has settings for {known} only")
    return FILES[preset]
