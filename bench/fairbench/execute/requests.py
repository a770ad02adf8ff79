"""Requests of users: the flags of the commands made into an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.cluster import check_sides
from fairbench.config.flags.flag import check_names, placed
from fairbench.config.flags.run import RUN
from fairbench.config.resolve import read_experiment, resolve


def experiment(
    flags: Mapping[str, Any], settings: Mapping[str, Any], file: Path | None = None
) -> ExperimentSpec:
    """Build an experiment from a file, overridden by named flags; None means not given.

    ``settings`` are by ``NAME.PARAM`` and override the engine's flags. Raises UsageError in one
    line that names what is wrong, DataError if the file is wrong.
    """
    check_names(flags, RUN)
    check_sides(flags)
    given = placed({name: one for name, one in flags.items() if one is not False}, RUN)
    if given.trace:
        from fairbench.execute.traced import traced  # few runs play one

        given = traced(given)
    keys = given.keys | ({"backend": given.backend} if given.backend else {})
    read = read_experiment(file) if file else None
    return resolve(keys, given.settings | dict(settings), read, path=file)
