"""The directories in which runs and sweeps are stored.

Every file is written either completely or not at all.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from fairbench import errors
from fairbench.config import ExperimentSpec, identity, to_toml
from fairbench.config.sweep import Sweep, read_sweep, sweep_toml
from fairbench.files.formats import json_file
from fairbench.files.reader import MissingFile
from fairbench.metrics.tables import FiledColumns, to_arrow
from fairbench.results import new_directories
from fairbench.results.experiments import point_names
from fairbench.results.summary import cluster_name, scheduler_name

if TYPE_CHECKING:
    import pyarrow as pa


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
    """Raise DataError if a field of the manifest has a wrong type."""
    with errors.of_file(f"{path}"):
        _Manifest.model_validate(manifest)


# Readers refuse stored runs whose schema has another version. Version 1 has the tables requests,
# programs and service, the summary, the spec and the manifest.
SCHEMA_VERSION = 1

TABLES = ("requests", "programs", "service")
MEMORY_TABLE = "memory"  # only in runs that recorded which clients hold KV memory
LOG = ".log"
EXPERIMENT, SUMMARY = "experiment.toml", "summary.json"
MANIFEST = "manifest.json"  # fairbench writes this file last into a run's directory
ROWS_PER_GROUP = 65_536
# File systems limit names to 255 bytes, and fairbench may add an ending such as ".2".
MAX_RUN_NAME = 200


Summary = Mapping[str, Any]
"""The content of a run's ``summary.json``, or of several summaries that ``intervals`` combines."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stored run: its directory, and the contents of its summary and manifest."""

    path: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]

    def table(self, name: str) -> pa.Table:
        """Return one of the tables in ``TABLES`` by its name.

        Raises DataError if the file cannot be read.
        """
        from fairbench.files.formats import read_parquet

        return read_parquet(self.path / f"{name}.parquet")

    def has_table(self, name: str) -> bool:
        """Return whether the run has a table of this name."""
        return (self.path / f"{name}.parquet").exists()


def save_run(
    parent: Path,
    spec: ExperimentSpec,
    tables: Mapping[str, Mapping[str, Any]],
    summary: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> Path:
    """Write a run into a new directory in ``parent``, and return the directory.

    The directory is written under a hidden name and renamed when complete. Raises UsageError if the
    directory cannot be written; then no partial files remain.
    """
    with new_directories.making_parents(parent):
        hidden = parent / f".writing-{secrets.token_hex(8)}"
        hidden.mkdir()
        try:
            write_run(hidden, spec, tables, summary, manifest)
            return new_directories.renamed_to_fresh(hidden, parent / run_name(spec))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise


def begin_run(parent: Path, spec: ExperimentSpec) -> Path:
    """Create the directory of a run in progress, which contains only the experiment file.

    The function ``write_run`` writes the files of results when the run ends. Raises UsageError if
    the directory cannot be created.
    """
    path = new_directories.fresh_directory(parent, run_name(spec))
    (path / EXPERIMENT).write_text(to_toml(spec), encoding="utf-8")
    return path


@contextmanager
def begun_run(parent: Path, spec: ExperimentSpec) -> Iterator[Path]:
    """Create the directory of a run; remove it if the run fails before its first record.

    After a UsageError, the run could not start, so the run's directory is removed too.
    """
    with new_directories.making_parents(parent):
        path = begin_run(parent, spec)
        try:
            yield path
        except BaseException as error:
            if isinstance(error, errors.UsageError) or not has_begun(path):
                shutil.rmtree(path)
            raise


def has_begun(path: Path) -> bool:
    """Return whether a run's directory holds records, besides the experiment file and logs."""
    return any(file.suffix != LOG for file in path.glob("*/[!.]*"))


def run_name(spec: ExperimentSpec) -> str:
    """Return the name for a run's directory; a number is added later if the name is taken."""
    parts = [spec.tag] if spec.tag else []
    named = spec.model_dump(include={"scheduler", "gateway", "saturation", "eviction"})
    parts += [scheduler_name(named).replace(" ", "-")]
    cluster = cluster_name(spec.model_dump(include={"dp", "prefill", "decode"})).replace(" ", "")
    parts += [spec.workload.name, spec.scenario, cluster, f"seed{spec.seed}"]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", "-".join(parts)).lstrip(".")[:MAX_RUN_NAME]


def write_run(
    path: Path,
    spec: ExperimentSpec,
    tables: Mapping[str, Mapping[str, Any]],
    summary: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Write the files of a run into its directory.

    The manifest is written last, so that a directory with a manifest contains all files. Raises
    RunFailed if the files cannot be written.
    """
    try:
        _write_tables(path, tables)
        (path / EXPERIMENT).write_text(to_toml(spec), encoding="utf-8")
        for name, content in ((SUMMARY, summary), (MANIFEST, manifest)):
            write_json(path / name, content)
    except OSError as error:
        raise errors.RunFailed(f"{path}: cannot be written: {error.strerror}") from None


def _write_tables(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    import pyarrow.parquet as pq

    for name in (*TABLES, MEMORY_TABLE):
        if name not in tables and name == MEMORY_TABLE:
            continue
        # Python opens the file, because pyarrow cannot open a path that is not UTF-8.
        with (path / f"{name}.parquet").open("wb") as file:
            table = tables[name]
            groups = table.parts(ROWS_PER_GROUP) if isinstance(table, FiledColumns) else [table]
            parts = map(_as_arrow, groups)
            first = next(parts)
            with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
                for part in chain([first], parts):
                    writer.write_table(part, row_group_size=ROWS_PER_GROUP)


def _as_arrow(table: Mapping[str, Any]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            name: to_arrow(column) if isinstance(column, np.ndarray) else column
            for name, column in table.items()
        }
    )


def read_run(path: Path) -> StoredRun:
    """Read the directory of a stored run.

    Raises DataError if the directory is not a run, or has another schema version.
    """
    manifest = read_json(path / MANIFEST)
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise errors.DataError(
            f"{path / MANIFEST}: schema_version = {version!r}: must be {SCHEMA_VERSION} "
            "for this version of fairbench"
        )
    check_manifest(manifest, path / MANIFEST)
    summary = read_json(path / SUMMARY)
    if "failed" in summary and "unfinished" not in summary:
        # Older versions counted unfinished requests as failed.
        summary |= {"failed": 0, "unfinished": summary["failed"]}
    return StoredRun(path, summary, manifest)


def runs_in(folder: Path) -> list[StoredRun]:
    """Return the saved runs in a directory, in the order of the directory names.

    Raises the errors that ``read_run`` raises.
    """
    return [read_run(path) for path in sorted(folder.iterdir()) if is_run(path)]


def is_run(path: Path) -> bool:
    """Return whether a directory holds a saved run, complete or not."""
    return not path.name.startswith(".") and (path / MANIFEST).exists()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a result directory, with texts safe for terminals and CI logs.

    Raises DataError with file and line if the file is not a JSON object.
    """
    try:
        content = json_file(path, f"{path}", strict=True)
    except MissingFile:
        raise errors.DataError(
            f"{path}: no such file; {path.parent} must be the directory of a run"
        ) from None
    if not isinstance(content, dict):
        raise errors.DataError(f"{path}: must hold a JSON object")
    cleaned: dict[str, Any] = _cleaned(content)
    return cleaned


def _cleaned(content: Any) -> Any:
    if isinstance(content, str):
        return errors.printable_lines(content)
    if isinstance(content, list):
        return [_cleaned(one) for one in content]
    if isinstance(content, dict):
        return {errors.printable(key): _cleaned(value) for key, value in content.items()}
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, either completely or not at all."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all; an old file is replaced only at the end."""
    hidden = path.with_name(f".{path.name}.part")
    try:
        with new_directories.naming(path):
            hidden.write_text(text, encoding="utf-8")
            hidden.replace(path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


SWEEP_FILE = "sweep.toml"
QUESTION, ANSWER = "plan.json", "answer.json"  # A plan is a sweep with these files.

AloneRows = Sequence[Mapping[str, Any]]
"""The latencies of clients that were simulated alone, one row per client."""


@dataclass(frozen=True, slots=True)
class SweepStore:
    """The directory of a sweep, with methods that create, read and extend it."""

    path: Path

    @classmethod
    def create(cls, parent: Path, sweep: Sweep, points: Sequence[ExperimentSpec]) -> SweepStore:
        """Create a directory for a sweep in ``parent``.

        Raises UsageError if ``parent`` cannot be written.
        """
        new_directories.check_writable(parent)
        store = cls(new_directories.fresh_directory(parent, sweep.name))
        for folder in (store.runs, store.alone_folder, store.path / "failed"):
            folder.mkdir()
        store.extend(sweep, points)
        return store

    def extend(self, sweep: Sweep, points: Sequence[ExperimentSpec]) -> None:
        """Replace the stored sweep by a larger sweep, and keep the runs that have finished."""
        named = zip(points, point_names(points), strict=True)
        index = [{"identity": identity(spec), "name": name} for spec, name in named]
        write_text(self.file, sweep_toml(sweep))
        write_json(self.path / "index.json", {"points": index})

    @property
    def runs(self) -> Path:
        """The folder that contains the run directories of the sweep."""
        return self.path / "runs"

    @property
    def alone_folder(self) -> Path:
        """The folder that stores the latencies of clients simulated alone."""
        return self.path / "alone"

    @property
    def file(self) -> Path:
        """The file that describes the sweep."""
        return self.path / SWEEP_FILE

    def sweep(self) -> Sweep:
        """Return the sweep that the directory stores.

        Raises DataError if the directory stores no sweep.
        """
        return read_sweep(str(self.file))

    def finished(self) -> dict[str, StoredRun]:
        """Return the completed runs of the sweep by identity, in the sweep's order.

        Raises DataError if a run cannot be read.
        """
        order = self.points()
        runs = {run.manifest["spec_identity"]: run for run in runs_in(self.runs) if _is_whole(run)}
        return {one: runs[one] for one in order if one in runs}

    def points(self) -> dict[str, str]:
        """Return the names of all experiments of the sweep, finished or not, by identity."""
        points = read_json(self.path / "index.json")["points"]
        return {point["identity"]: point["name"] for point in points}

    def take_from(self, other: SweepStore, leave: Collection[str] = ()) -> None:
        """Copy finished runs, and stored latencies of clients simulated alone, from another sweep.

        Runs whose identity is in ``leave`` are not copied. Raises DataError if a run cannot be
        read.
        """
        lacking = self.points().keys() - self.finished().keys()
        for key, run in other.finished().items():
            if key in lacking and key not in leave:
                hidden = self.runs / f".writing-{secrets.token_hex(8)}"
                shutil.copytree(run.path, hidden)
                new_directories.renamed_to_fresh(hidden, self.runs / run.path.name)
        for key, rows in other.alone().items():
            if not (self.alone_folder / f"{key}.json").exists():
                save_alone(self.alone_folder, key, rows)

    def discard_partial(self) -> None:
        """Remove the files of interrupted runs, because these runs will start again."""
        for path in self.runs.iterdir():
            if not is_run(path):
                shutil.rmtree(path)
        for run in runs_in(self.runs):
            if not _is_whole(run):
                shutil.rmtree(run.path)

    def alone(self) -> dict[str, AloneRows]:
        """Return the stored latencies of clients simulated alone; ``alone_key`` makes the keys."""
        files = sorted(self.alone_folder.glob("*.json"))
        return {file.stem: read_json(file)["clients"] for file in files}

    def save_failure(self, key: str, point: str, error: str, traceback: str) -> None:
        """Store the reason why an experiment of the sweep failed."""
        failure = {"point": point, "error": error, "traceback": traceback}
        write_json(self.path / "failed" / f"{key}.json", failure)

    def failures(self) -> dict[str, str]:
        """Return the errors of the failed experiments, by the experiment's name."""
        files = sorted((self.path / "failed").glob("*.json"))
        return {str(one.get("point")): str(one.get("error")) for one in map(read_json, files)}

    def clear_failure(self, key: str) -> None:
        """Remove the stored failure of an experiment that has now succeeded."""
        with suppress(FileNotFoundError):
            (self.path / "failed" / f"{key}.json").unlink()


def save_alone(folder: Path, key: str, rows: AloneRows) -> None:
    """Store the latencies of clients simulated alone, for one configuration and seed."""
    write_json(folder / f"{key}.json", {"clients": list(rows)})


def _is_whole(run: StoredRun) -> bool:
    return run.manifest.get("complete") is True
