"""The points of a sweep, each a full experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import ceil, prod
from typing import Any

from fairbench.config.defaults import DEFAULTS
from fairbench.config.resolve import resolve
from fairbench.config.spec import ExperimentSpec, identity
from fairbench.config.sweep import MAX_POINTS, Sweep
from fairbench.errors import DataError, UsageError

QUICK_PROGRAMS = 40  # of the well-behaved clients of a point, all together


def points(
    sweep: Sweep, *, file: str | None = None, said: Collection[str] = ()
) -> list[ExperimentSpec]:
    """Return every distinct experiment of a sweep, over all seeds, in order of the grids.

    ``file`` is the sweep's source, ``said`` are the keys that flags say. Raises UsageError if there
    is no point, if there are too many, or if a point is impossible. If what is wrong is the file's,
    raises DataError, which names the file.
    """
    try:
        return _points(sweep)
    except UsageError as error:
        if file is not None and error.is_of_file(said):
            raise DataError(f"{file}: {error}") from None
        raise


def _points(sweep: Sweep) -> list[ExperimentSpec]:
    count = sum(prod(len(_values(values)) for values in grid.values()) for grid in sweep.grid)
    if count * sweep.num_runs > MAX_POINTS:
        raise UsageError(
            f"grid: has {count * sweep.num_runs:,} points, and at most {MAX_POINTS:,} are allowed"
        )
    found: dict[str, ExperimentSpec] = {}
    for draft in _drafts(sweep):
        first = _resolve_quick(draft) if sweep.quick else _resolve(draft)
        for number in range(sweep.num_runs):
            spec = first.model_copy(update={"seed": first.seed + number})
            found.setdefault(identity(spec), spec)
    if not found:
        raise UsageError("grid: all points are excluded; leave at least one")
    return list(found.values())


def _drafts(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield the keys of each point, before defaults."""
    for grid in sweep.grid:
        for values in product(*(_values(values) for values in grid.values())):
            draft = {**sweep.base, **dict(zip(grid, values, strict=True))}
            if not any(_matches({**DEFAULTS, **draft}, rule) for rule in sweep.exclude):
                yield draft


def _matches(draft: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(draft.get(key) in _values(values) for key, values in rule.items())


def _values(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list) else [values]


def _resolve(draft: Mapping[str, Any]) -> ExperimentSpec:
    settings = {key: value for key, value in draft.items() if "." in key}
    return resolve({key: value for key, value in draft.items() if "." not in key}, settings)


def _resolve_quick(draft: Mapping[str, Any]) -> ExperimentSpec:
    plans = _resolve(draft).client_plans()
    well_behaved = sum(not plan.misbehaving for plan in plans)
    programs = ceil(QUICK_PROGRAMS / max(1, well_behaved))
    timeless = {key: value for key, value in draft.items() if key != "duration_s"}
    return _resolve({**timeless, "num_programs": programs})
