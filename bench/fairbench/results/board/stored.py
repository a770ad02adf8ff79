"""Stored sweeps combined: the lines of a leaderboard, and points without a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.errors import DataError
from fairbench.results.board.lines import Line, read_lines
from fairbench.results.comparison import compare
from fairbench.results.store import SUMMARY, StoredRun, read_json
from fairbench.results.summary_schema import check_summary
from fairbench.results.sweep_store import SWEEP_FILE, SweepStore

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
    """Read files with disjoint seeds, because best totals are known within a file only."""
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
