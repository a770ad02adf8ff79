"""The file ``results/seeds/NAME.csv`` with each seed's metrics, by which claims are judged.

A row holds a run's settings, the metrics that verdicts use, and values derived from the run's
records, such as response times over time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.config.sweep import read_sweep
from fairbench.errors import DataError
from fairbench.execute.executors import LOCAL, executor_named
from fairbench.execute.tasks import run_context
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.results.comparison import ComparedRun, SchedulerResults, compare_sweep
from fairbench.results.store import StoredRun
from fairbench_studies.kit.rows import ROOT, read_rows, write_rows
from fairbench_studies.kit.store import filling

RUNS = ROOT / "results" / "runs"

PLACE = ("workload", "scenario", "dp", "scheduler")
TEXTS = ("workload", "scenario", "scheduler", "timing_profile", "bound_source")
FACTS = (
    *PLACE, "seed", "simulated", "complete", "timing_profile", "bound_source", "duration",
    "unfinished", "time_to_100pct_s", "window_start_s", "window_end_s", "paper_window_start_s",
    "paper_window_end_s", "service_rate_tok_s", "service_rate_paper_window_tok_s",
    "output_rate_tok_s", "jain_index", "jain_index_paper_window", "jain_index_actual",
    "jain_index_maxmin", "min_entitlement_ratio", "victim_p50_s", "victim_p99_s",
    "cache_hit_rate", "queue_empty_share", "max_service_gap", "service_gap_bound",
)  # fmt: skip
"""Keys of a run's summary: the values that verdicts and figures need."""
VARIED = (
    "window", "burstiness", "workload.params.question_tokens", "settings.dlpm.quantum",
    "settings.dlpm.join", "settings.d2lpm.worker_quantum", "settings.engine.max_total_tokens",
    "settings.engine.batch_is_full",
)  # fmt: skip
"""The settings, besides those in ``PLACE``, in which experiments of judged runs may differ."""
MOST_ROWS = 400  # maximum number of rows per file, to keep files small
DIGITS = 7  # significant digits of a derived value


@dataclass(frozen=True, slots=True)
class JudgedRun(StoredRun):
    """A run that caches the values that were derived from its records."""

    derived: dict[str, Any]


def derived(run: StoredRun, name: str, derive: Callable[[], Any]) -> Any:
    """Return a value derived from a run's records, and cache the value in a ``JudgedRun``."""
    if not isinstance(run, JudgedRun):
        return derive()
    if name not in run.derived:
        run.derived[name] = _rounded(derive())
    value = run.derived[name]
    return np.array(value, dtype=float) if isinstance(value, list) else value


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    listed = value.tolist() if isinstance(value, np.ndarray) else value
    return [_rounded(one) for one in listed] if isinstance(listed, list | tuple) else listed


def keeping(cells: Iterable[SchedulerResults]) -> list[SchedulerResults]:
    """Copy the results so that their runs keep the derived values that ``write_seeds`` stores."""
    return [replace(cell, runs=tuple(map(_keeping, cell.runs)), known=None) for cell in cells]


def _keeping(one: ComparedRun) -> ComparedRun:
    run = one.run
    return replace(one, run=JudgedRun(run.path, run.summary, run.manifest, {}))


def write_seeds(path: Path, cells: Iterable[SchedulerResults]) -> None:
    """Write the metrics of each seed as CSV, with one row per run.

    More than ``MOST_ROWS`` rows are split into several files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in _files(path):
        old.unlink(missing_ok=True)
    rows = [_row(run) for cell in cells for run in cell.runs]
    for part, rest in zip(_names(path), range(0, len(rows), MOST_ROWS), strict=False):
        write_rows(part, rows[rest : rest + MOST_ROWS])


def _names(path: Path) -> Iterator[Path]:
    """Yield the path of the first file, then paths of further files such as fig7.2.csv."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.stem}.{number}{path.suffix}")


def _files(path: Path) -> list[Path]:
    return list(takewhile(lambda one: one == path or one.exists(), _names(path)))


def _row(one: ComparedRun) -> dict[str, str]:
    summary = one.summary
    settings = {key: value_at(one.experiment, key) for key in VARIED}
    more = {
        "clients": len(summary["clients"]),
        "contended": summary["notes"].get("min_entitlement_ratio") != NOT_CONTENDED,
        "at_least": " ".join(key for key in FACTS if key in summary["censored"]),
        "settings": {key: value for key, value in settings.items() if value is not None},
        "derived": getattr(one.run, "derived", {}),
    }
    facts = {key: summary.get(key) for key in FACTS}
    return {key: _text(value) for key, value in (facts | more).items()}


def value_at(experiment: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of an experiment, or None if the key is missing."""
    found: Any = experiment
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def read_seeds(path: Path) -> list[SchedulerResults]:
    """Read the results that ``write_seeds`` wrote, in the order of the stored rows.

    Raises DataError if a file is invalid.
    """
    cells: dict[tuple[str, ...], list[ComparedRun]] = {}
    try:
        for row in (row for part in _files(path) for row in read_rows(part)):
            key = tuple(row[name] for name in (*PLACE, "clients", "settings"))
            cells.setdefault(key, []).append(_run(row, path))
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: holds no per-seed values ({error})") from None
    return [
        SchedulerResults(f"{workload} {scenario} dp {dp}", scheduler, tuple(runs))
        for (workload, scenario, dp, scheduler, *_), runs in cells.items()
    ]


def _run(row: Mapping[str, str], path: Path) -> ComparedRun:
    contended = _value("contended", row["contended"])
    summary = {key: _value(key, row[key]) for key in FACTS} | {
        "clients": [{"client": f"client-{number}"} for number in range(int(row["clients"]))],
        "censored": row["at_least"].split(),
        "notes": {} if contended else {"min_entitlement_ratio": NOT_CONTENDED},
    }
    experiment: dict[str, Any] = {}
    for key, value in json.loads(row["settings"]).items():
        *parts, name = key.split(".")
        table = experiment
        for part in parts:
            table = table.setdefault(part, {})
        table[name] = value
    run = JudgedRun(path, summary, {}, json.loads(row["derived"]))
    return ComparedRun(run, {"settings": {}} | experiment, summary)


def _value(key: str, text: str) -> Any:
    if not text:
        return None
    return text if key in TEXTS else json.loads(text)


def completed_cells(sweep: str) -> tuple[str, list[SchedulerResults]]:
    """Simulate missing runs of a sweep. Return the sweep's name and the results of all runs."""
    read = read_sweep(sweep)
    folder = RUNS / read.name
    with run_context(None, executor_named(LOCAL)) as context:
        failures = filling(read, folder).run(context)
        if context.interrupted() or failures:
            raise SystemExit(
                f"{folder}: runs are missing ({len(failures)} failed); start the script again"
            )
    return read.name, keeping(compare_sweep(folder))
