"""Stored runs that an engine's own code decided, compared with the code that is installed now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.cluster import ENGINE_CODE
from fairbench.doors import CODE_GROUP, through
from fairbench.errors import UsageError
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.results.store import StoredRun, SweepStore
from fairbench.results.summary import code_name, is_same_code


class OutdatedRun(NamedTuple):
    """A stored run whose code is no longer installed: identity, Python, and both codes."""

    identity: str
    python: str
    stored: Mapping[str, Any]
    installed: Mapping[str, Any]

    def __str__(self) -> str:
        return (
            f"decided by {code_name(self.stored)}, and {self.python} now has "
            f"{code_name(self.installed)}"
        )


def outdated_runs(
    finished: Mapping[str, StoredRun], specs: Iterable[ExperimentSpec]
) -> list[OutdatedRun]:
    """Return the finished runs of experiments whose engine code has changed since.

    Args:
        finished: Stored runs, by the identity of their experiments.
        specs: Experiments, of which only those with ``engine_code`` and a stored run count.

    Raises UsageError if a Python, or the engine in it, is no longer there.
    """
    installed = cache(_installed)
    found = []
    for spec in specs:
        run = finished.get(key := identity(spec)) if spec.engine_code else None
        if run is None or spec.engine_code is None:
            continue
        now, stored = installed(spec.engine_code, spec.engine), run.summary[ENGINE_CODE]
        if not is_same_code(stored, now):
            found.append(OutdatedRun(key, spec.engine_code, stored, now))
    return found


def _installed(python: str, engine: str | None) -> dict[str, Any]:
    code: dict[str, Any] = through(CODE_GROUP, engine or DEFAULT_ENGINE).installed(python)
    return code


def check_same_code(store: SweepStore, specs: Iterable[ExperimentSpec]) -> None:
    """Raise UsageError if the engine code of a sweep's finished runs has changed since."""
    coded = [spec for spec in specs if spec.engine_code]
    if outdated := outdated_runs(store.finished() if coded else {}, coded):
        runs = "1 finished run was" if len(outdated) == 1 else f"{len(outdated)} finished runs were"
        raise UsageError(
            f"{store.path}: {runs} {outdated[0]}; restore the code of these runs, or begin again "
            "in another directory"
        )
