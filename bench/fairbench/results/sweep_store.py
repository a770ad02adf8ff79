"""A sweep's directory: the sweep, a run directory per finished point, and failures.

sweep.toml       the sweep, flags included: all that is needed to continue it
index.json       its points in order: identity and name
runs/            one run directory per point
alone/           per place and seed, latencies of the clients each on its own part of the cluster
failed/          per failed point, its error
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import Sweep, read_sweep, to_toml
from fairbench.results.grid import point_names
from fairbench.results.new_directories import check_writable, fresh_directory, renamed_to_fresh
from fairbench.results.store import StoredRun, is_run, read_json, runs_in, write_json, write_text

SWEEP_FILE = "sweep.toml"  # a directory with this file is a sweep

AloneRows = Sequence[Mapping[str, Any]]
"""A row per client, as ``fairbench.sim.alone`` returns them."""


@dataclass(frozen=True, slots=True)
class SweepStore:
    """The directory of one sweep. ``create`` makes it; other methods read or add to it."""

    path: Path

    @classmethod
    def create(cls, parent: Path, sweep: Sweep, points: Sequence[ExperimentSpec]) -> SweepStore:
        """Create a directory for a sweep in ``parent``. Raises UsageError if that fails."""
        check_writable(parent)
        store = cls(fresh_directory(parent, sweep.name))
        for folder in (store.runs, store.alone_folder, store.path / "failed"):
            folder.mkdir()
        store.extend(sweep, points)
        return store

    def extend(self, sweep: Sweep, points: Sequence[ExperimentSpec]) -> None:
        """Store the points of a larger sweep; finished runs of the smaller one stay."""
        named = zip(points, point_names(points), strict=True)
        index = [{"identity": identity(spec), "name": name} for spec, name in named]
        write_text(self.file, to_toml(sweep))
        write_json(self.path / "index.json", {"points": index})

    @property
    def runs(self) -> Path:
        """The folder of the run directories."""
        return self.path / "runs"

    @property
    def alone_folder(self) -> Path:
        """The folder in which ``save_alone`` stores its rows."""
        return self.path / "alone"

    @property
    def file(self) -> Path:
        """The file that describes the sweep."""
        return self.path / SWEEP_FILE

    def sweep(self) -> Sweep:
        """Return the sweep of a directory. Raises DataError if the directory holds no sweep."""
        return read_sweep(str(self.file))

    def finished(self) -> dict[str, StoredRun]:
        """Return the completed runs by identity, in the order of the points. Raises DataError."""
        order = self._identities()
        runs = {run.manifest["spec_identity"]: run for run in runs_in(self.runs) if _is_whole(run)}
        return {one: runs[one] for one in order if one in runs}

    def _identities(self) -> list[str]:
        """Return the points' identities, in order. Raises DataError if the index is unreadable."""
        index = read_json(self.path / "index.json")
        return [point["identity"] for point in index["points"]]

    def take_from(self, other: SweepStore) -> None:
        """Copy finished points, and clients alone, from another sweep. Raises DataError."""
        lacking = set(self._identities()) - set(self.finished())
        for key, run in other.finished().items():
            if key in lacking:
                hidden = self.runs / f".writing-{secrets.token_hex(8)}"
                shutil.copytree(run.path, hidden)
                renamed_to_fresh(hidden, self.runs / run.path.name)
        for key, rows in other.alone().items():
            if not (self.alone_folder / f"{key}.json").exists():
                save_alone(self.alone_folder, key, rows)

    def discard_partial(self) -> None:
        """Remove the remains of interrupted points, which start again."""
        for path in self.runs.iterdir():
            if not is_run(path):
                shutil.rmtree(path)
        for run in runs_in(self.runs):
            if not _is_whole(run):
                shutil.rmtree(run.path)

    def alone(self) -> dict[str, AloneRows]:
        """Return the results of clients simulated alone, by their keys."""
        files = sorted(self.alone_folder.glob("*.json"))
        return {file.stem: read_json(file)["clients"] for file in files}

    def save_failure(self, key: str, point: str, error: str, traceback: str) -> None:
        """Store the reason why a point failed."""
        failure = {"point": point, "error": error, "traceback": traceback}
        write_json(self.path / "failed" / f"{key}.json", failure)

    def clear_failure(self, key: str) -> None:
        """Remove the stored failure of a point that has succeeded."""
        with suppress(FileNotFoundError):
            (self.path / "failed" / f"{key}.json").unlink()


def save_alone(folder: Path, key: str, rows: AloneRows) -> None:
    """Store the latencies of the clients alone for one configuration and seed."""
    write_json(folder / f"{key}.json", {"clients": list(rows)})


def _is_whole(run: StoredRun) -> bool:
    return run.manifest.get("complete") is True
