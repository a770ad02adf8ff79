"""Stored sweeps combined: the lines of a leaderboard, and points without a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import DataError, printable
from fairbench.files.csv_text import csv_reader
from fairbench.files.reader import opened
from fairbench.metrics.catalogue import metric_of
from fairbench.results.comparison import compare
from fairbench.results.store import SUMMARY, StoredRun, read_json
from fairbench.results.summary_schema import check_summary
from fairbench.results.sweep_metrics import BOUNDS
from fairbench.results.sweep_store import SWEEP_FILE, SweepStore

LABELS = ("place", "cell", "seed")  # as in a sweep's metrics.csv, where ``cell`` is the scheduler
KEPT = (
    *("timing_profile", "timing_error_pct", "engine", "served", "emulated", "simulated", "dp"),
    *("demand_limited", "queue_empty_share", "refused"),
    *("service_rate_tok_s", "min_entitlement_best_ratio", "min_entitlement_ratio"),
    *("victim_n", "victim_p50_s", "victim_p95_s", "victim_p99_s"),
    *("sharing_incentive_p50", "sharing_incentive_p95", "sharing_incentive_p99"),
    *("jain_index_actual", "cache_hit_rate", "max_service_gap", *BOUNDS),
)
TEXTS = ("timing_profile", "engine", "served")
UNSAID = "the file gives no reason"
FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Line:
    """A run: its configuration, scheduler, seed and summary."""

    place: str
    scheduler: str
    seed: int
    summary: Mapping[str, Any]


def lines_csv(lines: Iterable[Line]) -> str:
    """Return the lines as CSV with all digits, which restores the table exactly."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*LABELS, *KEPT))
    for line in lines:
        values = [_written(line.summary.get(key)) for key in KEPT]
        writer.writerow([line.place, line.scheduler, line.seed, *values])
    return file.getvalue()


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(key for key in value if key in KEPT)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def holds_lines(path: Path) -> bool:
    """Return whether a file begins as a leaderboard's CSV. Raises DataError if it is unreadable."""
    head = ",".join(LABELS).encode()
    if path.suffix != ".csv":
        return False
    with opened(path, f"{path}") as file:
        return file.read(len(head)) == head


def read_lines(path: Path) -> list[Line]:
    """Read a CSV file, or a sweep's ``metrics.csv``. Raises DataError (file, line, column)."""
    try:
        reader = csv_reader(path, f"{path}")
        for label in LABELS:
            if label not in (reader.fieldnames or ()):
                raise DataError(f"{path}: line 1: column {label!r}: missing")
        return [_line(row, f"{path}: line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _line(row: Mapping[str | None, Any], where: str) -> Line:
    if None in row or None in row.values():
        raise DataError(f"{where}: must have as many columns as line 1")
    seed = row["seed"]
    if not (seed.isascii() and seed.isdigit() and len(seed) < 20):
        raise DataError(f"{where}: seed = {seed!r}: must be a whole number")
    read = {
        key: _value(key, text, where)
        for key, text in row.items()
        if key is not None and (key in KEPT or metric_of(key)) and key not in BOUNDS
    }
    summary = {key: value for key, value in read.items() if value is not None or metric_of(key)}
    bounds = {key: row.get(key, "").split() for key in BOUNDS}
    notes = {key: UNSAID for key, value in summary.items() if value is None}
    place, scheduler = printable(row["place"]), printable(row["cell"])
    return Line(place, scheduler, int(seed), {**summary, **bounds, "notes": notes})


def _value(key: str, text: str, where: str) -> Any:
    """Return a value of a summary; an empty text is undefined."""
    if not text or key in TEXTS:
        return text or None
    if text in FLAGS:
        return FLAGS[text]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise DataError(f"{where}: {key} = {text!r}: must be a number, or empty")
    return value


UNFINISHED = "not finished"


class Missing(NamedTuple):
    """A point of a sweep without a run, and the reason."""

    point: str
    reason: str


class Stored(NamedTuple):
    """The lines of some sweeps, and their missing runs."""

    lines: list[Line]
    missing: list[Missing]


def read_stored(paths: Sequence[Path]) -> Stored:
    """Read sweep directories, compared as if they were one, or CSV files.

    Raises DataError if a path is neither or is unreadable. Raises DataError if two directories hold
    different runs of an experiment and seed, or if two files have the same seed of a configuration.
    """
    files = [path for path in paths if path.suffix == ".csv"]
    if files and len(files) < len(paths):
        raise DataError(
            f"{files[0]}: CSV files cannot be combined with directories of sweeps; give only "
            "one kind"
        )
    if files:
        return Stored(_lines(files), [])
    for path in paths:
        if not (path / SWEEP_FILE).exists():
            kind = "is not the directory of a sweep" if path.is_dir() else "no such directory"
            raise DataError(f"{path}: {kind}")
    stores = [SweepStore(path) for path in paths]
    alone = {key: rows for store in stores for key, rows in store.alone().items()}
    runs: dict[str, StoredRun] = {}
    missing: list[Missing] = []
    for store in stores:
        finished = store.finished()
        missing += _missing(store, finished)
        for identity, run in finished.items():
            check_summary(run.summary, run.path / SUMMARY)
            if identity in runs and runs[identity].summary != run.summary:
                raise DataError(
                    f"{runs[identity].path} and {run.path}: the same run has different "
                    "results; keep one of them"
                )
            runs.setdefault(identity, run)
    lines = [
        Line(cell.place, cell.scheduler, run.summary["seed"], run.summary)
        for cell in compare(runs.values(), alone)
        for run in cell.runs
    ]
    return Stored(lines, missing)


def _lines(files: Sequence[Path]) -> list[Line]:
    """Read files with disjoint seeds, because best totals are known only within one file."""
    lines: list[Line] = []
    seen: dict[tuple[str, int], Path] = {}
    for file in files:
        read = read_lines(file)
        for line in read:
            if (other := seen.setdefault((line.place, line.seed), file)) != file:
                what = f"seed {line.seed} of {line.place} is in {other} too"
                raise DataError(
                    f"{file}: {what}; a seed of a configuration must be in a single file, "
                    "because its best total is"
                )
        lines += read
    return lines


def _missing(store: SweepStore, finished: Collection[str]) -> Iterator[Missing]:
    for point in read_json(store.path / "index.json")["points"]:
        if point["identity"] not in finished:
            failure = store.path / "failed" / f"{point['identity']}.json"
            reason = f"failed: {read_json(failure)['error']}" if failure.exists() else UNFINISHED
            yield Missing(point["name"], reason)
