"""The runs of the frontier study: planned, missing and finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import Sweep, make_sweep, points
from fairbench.results.store import StoredRun
from fairbench_studies.frontier.frozen import Cell, Configuration, Frozen
from fairbench_studies.kit.store import Filling, filling


class Point(NamedTuple):
    """A run of the frontier study, given by configuration, scheduler pair and seed."""

    cell: Cell
    configuration: Configuration
    seed: int


class Plan:
    """The planned runs: every scheduler pair in every configuration, with several seeds.

    ``seeds`` replaces the number of seeds of each configuration, if it is not None.
    """

    def __init__(self, frozen: Frozen, *, quick: bool = False, seeds: int | None = None) -> None:
        self.frozen = frozen
        usual = {cell: cell.quick if quick else cell.full for cell in frozen.cells}
        self.seeds = {
            cell: cell.seeds[: count if seeds is None else seeds]
            for cell, count in usual.items()
            if count
        }

    @property
    def cells(self) -> list[Cell]:
        """The configurations with planned runs."""
        return list(self.seeds)

    @cached_property
    def _points(self) -> list[tuple[Point, ExperimentSpec]]:
        found = []
        for cell in self.cells:
            for configuration in self.frozen.configurations:
                draft = self._draft(cell, configuration)
                one = make_sweep({"name": self.frozen.name, "grid": [draft]})
                found += [(Point(cell, configuration, spec.seed), spec) for spec in points(one)]
        return found

    @cached_property
    def identities(self) -> Mapping[str, list[Point]]:
        """The planned runs, keyed by the identity of their experiments.

        If a pair's published and tuned settings are equal, one experiment serves for both.
        """
        found: dict[str, list[Point]] = {}
        for point, spec in self._points:
            found.setdefault(identity(spec), []).append(point)
        return found

    def sweep(self, name: str) -> Sweep:
        """Return all planned runs as one sweep."""
        grid = [
            self._draft(cell, configuration)
            for cell in self.cells
            for configuration in self.frozen.configurations
        ]
        return make_sweep({"name": name, "grid": grid})

    def _draft(self, cell: Cell, configuration: Configuration) -> dict[str, Any]:
        preset = {"preset": self.frozen.preset} if self.frozen.preset else {}
        return {
            **preset,
            "workload": cell.workload,
            "scenario": cell.scenario,
            "dp": cell.dp,
            "scheduler": configuration.pair,
            "seed": list(self.seeds[cell]),
            **self.frozen.settings(configuration),
        }

    def left(self, folder: Path) -> Filling:
        """Find the planned runs that ``folder`` lacks; create ``folder`` if it does not exist.

        Missing runs are sorted by part (test first) and then by seed, so that an interrupted study
        has complete seeds.
        """
        specs = {identity(spec): spec for _, spec in self._points}
        lacking = filling(self.sweep(folder.name), folder, list(specs.values()))

        def turn(key: str) -> tuple[bool, int]:
            point = self.identities[key][0]
            return point.cell.part != "test", self.seeds[point.cell].index(point.seed)

        jobs = sorted(lacking.jobs, key=lambda job: (*turn(job.key), -job.requests))
        return replace(lacking, jobs=jobs)

    def finished(self, stored: Mapping[str, StoredRun]) -> Mapping[Point, StoredRun]:
        """Return the stored runs of the seeds for which every scheduler pair has a run."""
        runs = {
            point: stored[key]
            for key, sharing in self.identities.items()
            if key in stored
            for point in sharing
        }
        return {
            point: run
            for point, run in runs.items()
            if all(point._replace(configuration=c) in runs for c in self.frozen.configurations)
        }
