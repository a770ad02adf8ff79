"""A run directory: raw tables, summary, spec and manifest, written completely or not at all."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.config import ExperimentSpec, to_toml
from fairbench.errors import DataError, RunFailed, UsageError, printable, printable_lines
from fairbench.files.json_text import json_file
from fairbench.files.reader import MissingFile
from fairbench.metrics.tables import FiledColumns, to_arrow
from fairbench.results.header import cluster_name, scheduler_name
from fairbench.results.manifest_schema import check_manifest
from fairbench.results.new_directories import fresh_directory, made, naming, renamed_to_fresh

if TYPE_CHECKING:
    import pyarrow as pa

# History of the schema. A reader refuses a version that it does not know.
#   1  requests, programs and service tables; summary; spec; manifest
SCHEMA_VERSION = 1

TABLES = ("requests", "programs", "service")
MEMORY_TABLE = "memory"  # only in a run that recorded the holders of KV memory
LOG = ".log"
EXPERIMENT, SUMMARY = "experiment.toml", "summary.json"
MANIFEST = "manifest.json"  # a directory with this file is a run
ROWS_PER_GROUP = 65_536
MAX_RUN_NAME = 200  # file systems limit names to 255 bytes, and a number may follow


Summary = Mapping[str, Any]
"""A run's ``summary.json``, or several combined by ``intervals``."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stored run: its path, summary and manifest (as in their JSON files)."""

    path: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]

    def table(self, name: str) -> pa.Table:
        """Return one of ``TABLES``. Raises DataError if its file cannot be read."""
        from fairbench.files.parquet import read_parquet

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
    """Write one run into a new directory in ``parent``; return the directory.

    The directory is written under a hidden name and renamed when complete. Raises UsageError if it
    cannot be written, and leaves nothing behind then.
    """
    with made(parent):
        hidden = parent / f".writing-{secrets.token_hex(8)}"
        hidden.mkdir()
        try:
            write_run(hidden, spec, tables, summary, manifest)
            return renamed_to_fresh(hidden, parent / run_name(spec))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise


def begin_run(parent: Path, spec: ExperimentSpec) -> Path:
    """Create the directory of a run in progress, with the spec only.

    ``write_run`` turns it into a run. Raises UsageError if it cannot be created.
    """
    path = fresh_directory(parent, run_name(spec))
    _write_spec(path, spec)
    return path


@contextmanager
def begun_run(parent: Path, spec: ExperimentSpec) -> Iterator[Path]:
    """Call ``begin_run``; remove the directory if the run fails without records.

    The directory is also removed after a UsageError, which means that the run is impossible.
    """
    with made(parent):
        path = begin_run(parent, spec)
        try:
            yield path
        except BaseException as error:
            if isinstance(error, UsageError) or not has_begun(path):
                shutil.rmtree(path)
            raise


def has_begun(path: Path) -> bool:
    """Return whether a run's directory holds a record besides its spec. Logs do not count."""
    return any(file.suffix != LOG for file in path.glob("*/[!.]*"))


def without_logs(path: Path) -> Path | None:
    """Remove the directory of a run that did not begin; return where its logs are now, if any."""
    logs = sorted(path.glob(f"*/[!.]*{LOG}"))
    kept = Path(mkdtemp(prefix="fairbench-logs-")) if logs else None
    for log in logs:
        shutil.move(log, f"{kept}/{log.name}")
    shutil.rmtree(path)
    return kept


def run_name(spec: ExperimentSpec) -> str:
    """Return the name of a run's directory, without the number of a repeat."""
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
    """Write a run's files into its directory; the manifest, written last, makes it a run.

    Raises RunFailed if they cannot be written.
    """
    try:
        _write_tables(path, tables)
        _write_spec(path, spec)
        for name, content in ((SUMMARY, summary), (MANIFEST, manifest)):
            write_json(path / name, content)
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written: {error.strerror}") from None


def _write_tables(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    import pyarrow.parquet as pq

    for name in (*TABLES, MEMORY_TABLE):
        if name not in tables and name == MEMORY_TABLE:
            continue
        # An open file, since pyarrow itself takes no path that is not UTF-8.
        with (path / f"{name}.parquet").open("wb") as file:
            parts = map(_as_arrow, _parts(tables[name]))
            first = next(parts)
            with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
                for part in chain([first], parts):
                    writer.write_table(part, row_group_size=ROWS_PER_GROUP)


def _parts(table: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the table, or groups of its rows if it is on disk."""
    return table.parts(ROWS_PER_GROUP) if isinstance(table, FiledColumns) else iter([table])


def _as_arrow(table: Mapping[str, Any]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            name: to_arrow(column) if isinstance(column, np.ndarray) else column
            for name, column in table.items()
        }
    )


def _write_spec(path: Path, spec: ExperimentSpec) -> None:
    (path / EXPERIMENT).write_text(to_toml(spec), encoding="utf-8")


def read_run(path: Path) -> StoredRun:
    """Read a run directory.

    Raises DataError if the directory is not a run, or of another schema version.
    """
    manifest = read_json(path / MANIFEST)
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path / MANIFEST}: schema_version = {version!r}: must be {SCHEMA_VERSION} "
            "for this version of fairbench"
        )
    check_manifest(manifest, path / MANIFEST)
    return StoredRun(path, _in_present_terms(read_json(path / SUMMARY)), manifest)


def _in_present_terms(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary with current keys; older summaries called unfinished requests failed."""
    if "unfinished" in summary or "failed" not in summary:
        return summary
    return summary | {"failed": 0, "unfinished": summary["failed"]}


def runs_in(folder: Path) -> list[StoredRun]:
    """Return the saved runs in a directory, by name. Raises the errors of ``read_run``."""
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
        raise DataError(
            f"{path}: no such file; {path.parent} must be the directory of a run"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: must hold a JSON object")
    cleaned: dict[str, Any] = _cleaned(content)
    return cleaned


def _cleaned(content: Any) -> Any:
    if isinstance(content, str):
        return printable_lines(content)
    if isinstance(content, list):
        return [_cleaned(one) for one in content]
    if isinstance(content, dict):
        return {printable(key): _cleaned(value) for key, value in content.items()}
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, completely or not at all."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, completely or not at all; the old content stays until then."""
    hidden = path.with_name(f".{path.name}.part")
    try:
        with naming(path):
            hidden.write_text(text, encoding="utf-8")
            hidden.replace(path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise
