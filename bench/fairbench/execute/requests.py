"""Requests of users: the flags of the commands made into what is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.flags.flag import check_names, placed
from fairbench.config.flags.grid import SWEEP
from fairbench.config.flags.run import RUN
from fairbench.config.resolve import read_experiment, resolve
from fairbench.config.sweep import (
    Sweep,
    make_sweep,
    overridden,
    quickened,
    read_sweep,
    sweep_names,
)
from fairbench.errors import UsageError


def experiment(
    flags: Mapping[str, Any], settings: Mapping[str, Any], file: Path | None = None
) -> ExperimentSpec:
    """Build an experiment from a file, overridden by named flags; None means not given.

    ``settings`` are by ``NAME.PARAM`` and override the engine's flags. Raises UsageError in one
    line that names what is wrong, DataError if the file is wrong.
    """
    check_names(flags, RUN)
    given = placed({name: one for name, one in flags.items() if one is not False}, RUN)
    if given.trace:
        from fairbench.execute.traced import traced  # few runs play one

        given = traced(given)
    keys = given.keys | ({"backend": given.backend} if given.backend else {})
    read = read_experiment(file) if file else None
    return resolve(keys, given.settings | dict(settings), read, path=file)


def sweep_of(
    ref: str | None,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    num_runs: int | None = None,
    name: str | None = None,
    quick: bool = False,
) -> Sweep:
    """Build a sweep from a file or bundled name, from named flags, or from both.

    None means not given. A value of an axis or of ``settings`` may be a list of several values.
    Raises UsageError without any input, or for wrong input.
    """
    check_names(flags, SWEEP)
    axes = {**placed(flags, SWEEP).keys, **settings}
    if not ref and not axes:
        names = ", ".join(sweep_names())
        raise UsageError(f"nothing to sweep: name a FILE.toml, one of {names}, or --schedulers A,B")
    swept = read_sweep(ref) if ref else make_sweep({"name": "sweep", "grid": {}})
    fields = {"num_runs": num_runs, "name": name}
    fields = {key: value for key, value in fields.items() if value is not None}
    return overridden(quickened(swept) if quick else swept, axes, **fields)
