"""The function that runs an experiment, and its result: a summary and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np
import pyarrow as pa

from fairbench.config import ExperimentSpec
from fairbench.config.flags import READY_S, RunFlags
from fairbench.config.resolve import experiment as requested
from fairbench.config.spec import experiment_tables
from fairbench.errors import Interrupted, RunFailed, UsageError, unknown_name
from fairbench.execute.live_runs import NO_FLAGS, LiveFlags, check_live
from fairbench.execute.run_or_recover import run_and_save, run_unsaved
from fairbench.execute.tasks import run_context
from fairbench.figures import run_figure
from fairbench.metrics.tables import RunResult, to_arrow
from fairbench.report.numbers import number
from fairbench.report.progress import shown_progress
from fairbench.results.comparison import experiment_of
from fairbench.results.experiments import Experiment
from fairbench.results.store import StoredRun, read_run
from fairbench.results.summary import check_summary

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

RunTable = Literal["requests", "programs", "service", "clients"]


def frame(table: pa.Table) -> pandas.DataFrame:
    """Return an Arrow table as a pandas data frame.

    Raises UsageError if pandas is not installed.
    """
    try:
        import_module("pandas")
    except ImportError:
        raise UsageError('to_pandas needs pandas: pip install ".[pandas]"') from None
    return table.to_pandas()


def html_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return an HTML table of ``rows``; a column without any value is omitted."""
    shown = [column for column in columns if any(column in row for row in rows)]
    head = "".join(f"<th>{escape(column)}</th>" for column in shown)
    body = "".join(
        f"<tr>{''.join(_html_cell(row.get(column)) for column in shown)}</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_cell(value: object) -> str:
    if isinstance(value, Mapping):  # ``value`` is a mean over seeds with its confidence interval.
        low, high = value.get("low"), value.get("high")
        mean = number(value.get("mean"))
        text = mean if low is None else f"{mean} [{number(low)}, {number(high)}]"
        return f'<td style="text-align: right">{text}</td>'
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return f'<td style="text-align: right">{escape(number(value))}</td>'
    return f"<td>{escape(str(value))}</td>"


@dataclass(frozen=True, slots=True)
class _InMemory(StoredRun):
    """The tables and metadata of a run that is kept in memory and not stored on disk."""

    tables: Mapping[str, pa.Table]

    def table(self, name: str) -> pa.Table:
        return self.tables[name]


class Result:
    """The result of a run, as returned by ``run`` or ``load``.

    ``summary`` has the keys of docs/reference/metrics.md. ``experiment`` has the tables of
    ``experiment.toml``. ``path`` is the run's directory, or None if the run was not saved. All
    tables of the run are Arrow tables, which ``to_pandas`` converts to pandas data frames.
    """

    def __init__(self, run: StoredRun, experiment: Experiment, path: Path | None) -> None:
        self._run = run
        self.experiment = experiment
        self.path = path

    @classmethod
    def stored(cls, run: StoredRun) -> Result:
        """Return the result of a run that is stored in a directory.

        Raises DataError if the directory cannot be read.
        """
        return cls(run, experiment_of(run), run.path)

    @classmethod
    def unsaved(cls, spec: ExperimentSpec, result: RunResult) -> Result:
        """Return the result of a run that was kept in memory."""
        tables = {
            name: pa.table(
                {
                    name: to_arrow(column) if isinstance(column, np.ndarray) else column
                    for name, column in columns.items()
                }
            )
            for name, columns in result.tables().items()
        }
        return cls(_InMemory(Path(), result.summary, {}, tables), experiment_tables(spec), None)

    @property
    def stored_run(self) -> StoredRun:
        """The run as a ``StoredRun``, whose path is empty if the run was not saved."""
        return self._run

    @property
    def summary(self) -> dict[str, Any]:
        """All metrics of the run, by key; an undefined metric has the value None."""
        return self._run.summary

    @property
    def requests(self) -> pa.Table:
        """The requests as an Arrow table, one row per request.

        Raises DataError if the table cannot be read.
        """
        return self._run.table("requests")

    @property
    def programs(self) -> pa.Table:
        """The programs as an Arrow table, one row per program."""
        return self._run.table("programs")

    @property
    def service(self) -> pa.Table:
        """The service log, with a row per client for each period in which the batch is constant."""
        return self._run.table("service")

    @property
    def clients(self) -> pa.Table:
        """The clients as an Arrow table, one row per client, with their metrics."""
        return pa.Table.from_pylist(self.summary["clients"])

    def to_pandas(self, table: RunTable = "requests") -> pandas.DataFrame:
        """Return a table of the run as a pandas data frame.

        Args:
            table: ``requests``, ``programs``, ``service`` or ``clients``.

        Raises UsageError for an unknown table, or if pandas is not installed.
        """
        if table not in get_args(RunTable):
            raise unknown_name("table", table, get_args(RunTable))
        return frame(getattr(self, table))

    def plot(self) -> Figure:
        """Plot each client's service and response times over the run as a matplotlib figure.

        Raises UsageError if the packages of the extra ``plot`` are not installed.
        """
        return run_figure(self._run)

    def _repr_html_(self) -> str:
        columns = (
            *("client", "misbehaving", "programs", "service_rate_tok_s", "entitlement_ratio"),
            *("p50_s", "p95_s", "p99_s", "cache_hit_rate"),
        )
        return html_table(repr(self), self.summary["clients"], columns)

    def __repr__(self) -> str:
        keys = ("scheduler", "gateway", "workload", "scenario", "dp", "seed")
        named = ", ".join(f"{key}={self.summary[key]!r}" for key in keys if key in self.summary)
        return f"<fairbench.Result {named}>"


@contextmanager
def saved_in(
    result_dir: str | PathLike[str] | None, resume: str | PathLike[str] | None
) -> Iterator[Path]:
    """Yield the directory for new runs: ``result_dir``, or by default a temporary directory.

    If a run in a temporary directory is interrupted, the error message does not name the directory,
    because the run cannot be continued.
    """
    if result_dir is not None or resume is not None:
        yield Path(result_dir or "")
        return
    with TemporaryDirectory(prefix="fairbench-") as temporary:
        try:
            yield Path(temporary)
        except Interrupted as end:
            raise Interrupted("interrupted", end.exit_code) from None


def run(
    experiment: str | PathLike[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    result_dir: str | PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    server_python: str | None = None,
    ready_check_timeout_sec: float = READY_S,
    show_progress: bool = False,
    **flags: Unpack[RunFlags],
) -> Result:
    """Run one experiment, simulated or on real servers, and return its result.

    ``flags`` are the flags of ``fairbench run``, written with underscores; the command's defaults
    and checks apply. Flags override the file ``experiment``. ``settings`` is a dictionary of
    setting values, such as ``{"dlpm.quantum": 5000}``. ``headers`` are HTTP headers that are sent
    with each request to ``base_url``, and never stored. The run is saved in a new directory in
    ``result_dir``; without ``result_dir``, no files remain.

    Raises UsageError for a wrong flag, value or combination, and RunFailed if the run could not
    continue. At Ctrl-C, ``run`` saves the finished requests in ``result_dir``, if given, and raises
    Interrupted (a KeyboardInterrupt).
    """
    file = None if experiment is None else Path(experiment)
    spec = requested(flags, settings or {}, file)
    live = LiveFlags(server_python, ready_check_timeout_sec, headers or {})
    if spec.backend is not None or live != NO_FLAGS:
        check_live(spec, live)
    with run_context(shown_progress() if show_progress else None) as context:
        if result_dir is None:
            ran = run_unsaved(spec, live, context)
            result = Result.unsaved(spec, ran)
        else:
            ran, path = run_and_save(spec, live, Path(result_dir), context)
            result = Result.stored(read_run(path))
        if ran.complete:
            return result
        kept = "" if result.path is None else f"; the finished requests are saved to {result.path}"
        if context.interrupted():
            raise context.interrupted.ended(f"interrupted{kept}")
        raise RunFailed(f"{ran.summary['notes']['complete']}{kept}")


def load(directory: str | PathLike[str]) -> Result:
    """Return the result of a saved run from its directory.

    Raises DataError if the directory is not a run, has another schema version, or has a damaged
    summary.
    """
    stored = read_run(Path(directory))
    check_summary(stored.summary, stored.path / "summary.json")
    return Result.stored(stored)
