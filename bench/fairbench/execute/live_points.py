"""The points of a sweep on real servers, and which of them can share servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.live.backends.registry import same_workers
from fairbench.results.grid import point_names
from fairbench.results.sweep_store import SweepStore


class LivePoint(NamedTuple):
    """A run of a sweep on real servers."""

    name: str
    spec: ExperimentSpec


def live_points_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[LivePoint]:
    """Return a sweep's unfinished runs on real servers, in the order of its points."""
    finished = store.finished()
    return [
        LivePoint(name, spec)
        for spec, name in zip(specs, point_names(specs), strict=True)
        if spec.backend is not None and identity(spec) not in finished
    ]


def by_workers(points: Sequence[LivePoint]) -> list[list[LivePoint]]:
    """Group the live points so that the same workers can serve all points of a group."""
    groups: list[list[LivePoint]] = []
    for point in points:
        group = next((one for one in groups if same_workers(one[0].spec, point.spec)), None)
        if group is not None:
            group.append(point)
        elif point.spec.backend is not None:
            groups.append([point])
    return groups
