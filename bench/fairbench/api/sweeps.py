"""The Python function for ``fairbench sweep``, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from fairbench.api.result import frame, html_table, saved_in
from fairbench.config.flags import READY_S, SWEEP, SweepFlags
from fairbench.config.sweep import points, sweep_of
from fairbench.execute.live_runs import LiveFlags, check_live_points
from fairbench.execute.repeats import run_sweep
from fairbench.execute.tasks import run_context
from fairbench.figures import comparison_figure, latex_table
from fairbench.files.formats import read_parquet
from fairbench.report.progress import shown_progress
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench.results.store import SweepStore, read_json

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SEVERAL = (list, tuple, range)


class SweepResult:
    """The result of a sweep, as returned by ``sweep`` or ``load_sweep``.

    ``comparison`` is a dict with the content of the file ``comparison.json``. ``metrics`` is an
    Arrow table with one row per run. ``clients`` is an Arrow table with one row per run and client.
    ``path`` is the sweep's directory, or None if the sweep was not saved.
    """

    def __init__(
        self, comparison: dict[str, Any], metrics: pa.Table, clients: pa.Table, path: Path | None
    ) -> None:
        self.comparison = comparison
        self.metrics = metrics
        self.clients = clients
        self.path = path

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The metrics of each scheduler and configuration, each as ``{mean, low, high, runs}``.

        ``low`` and ``high`` bound the 95% confidence interval of the mean.
        """
        cells: list[dict[str, Any]] = self.comparison["cells"]
        return cells

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The error message of each failed experiment of the sweep, by the experiment's name."""
        failures: list[dict[str, Any]] = self.comparison["failures"]
        return failures

    def to_pandas(self) -> pandas.DataFrame:
        """Return ``metrics``, one row per run, as a pandas data frame.

        Raises UsageError if pandas is not installed.
        """
        return frame(self.metrics)

    def plot(self, kind: str = "tradeoff") -> Figure:
        """Draw bar charts, a plot of latency against throughput, or distributions of latencies.

        ``kind`` is ``bars`` (with confidence intervals), ``tradeoff`` or ``cdf``. Raises UsageError
        for an unknown kind of plot, for a ``cdf`` of runs that were not saved, and if the plot
        extra is not installed.
        """
        return comparison_figure(self._results(), kind)

    def latex(self, columns: Sequence[str] = ()) -> str:
        """Return the comparison as a LaTeX table (package booktabs) for one column of a paper.

        ``columns`` lists the metrics to show, such as ``victim_p95_s``. The default is as many
        metrics as fit into one column of a paper. Raises UsageError for a metric that the runs
        lack.
        """
        return latex_table(self._results(), columns)

    def _results(self) -> list[SchedulerResults]:
        if self.path is not None:
            return compare_sweep(self.path)
        return [SchedulerResults(one["place"], one["cell"], (), one) for one in self.cells]

    def _repr_html_(self) -> str:
        columns = (
            *("place", "cell", "service_rate_tok_s", "jain_index", "victim_p50_s"),
            *("victim_p95_s", "victim_p99_s", "cache_hit_rate"),
        )
        return html_table(repr(self), self.cells, columns)

    def __repr__(self) -> str:
        return f"<fairbench.SweepResult {self.comparison['sweep']!r}: {len(self.cells)} cells>"


def sweep(
    file: str | PathLike[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    num_runs: int | None = None,
    quick: bool = False,
    name: str | None = None,
    result_dir: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    server_python: str | None = None,
    ready_check_timeout_sec: float = READY_S,
    show_progress: bool = False,
    **flags: Unpack[SweepFlags],
) -> SweepResult:
    """Run a grid of experiments in parallel processes, and compare the experiments.

    ``file`` is the name of a bundled sweep, such as ``"fig7"``, or a path. ``flags`` are the flags
    of ``fairbench sweep``; a flag with several values takes a list. A value in ``settings`` may be
    a list; the sweep then runs every value of the list. The sweep is saved in a new directory in
    ``result_dir``; without ``result_dir``, no files remain. ``resume`` continues the sweep that is
    stored in the given directory.

    A failed experiment is listed in ``failures`` and does not stop the other experiments. Raises
    UsageError for a wrong flag, value or combination, and Interrupted (a KeyboardInterrupt) at
    Ctrl-C.
    """
    if resume is not None:
        store = SweepStore(Path(resume))
        swept = store.sweep()
        specs = points(swept, file=str(store.file))
    else:
        ref = None if file is None else str(file)
        listed = {key: _listed(key, value) for key, value in flags.items()}
        axes = {
            key: list(value) if isinstance(value, SEVERAL) else value
            for key, value in (settings or {}).items()
        }
        swept = sweep_of(ref, listed, axes, num_runs=num_runs, name=name, quick=quick)
        specs = points(swept, file=ref)
    live = LiveFlags(server_python, ready_check_timeout_sec)
    check_live_points(specs, live)
    with saved_in(result_dir, resume) as parent:
        if resume is None:
            store = SweepStore.create(parent, swept, specs)
        with run_context(shown_progress() if show_progress else None) as context:
            run_sweep(store, specs, live, context)
        result = load_sweep(store.path)
    if result_dir is None and resume is None:
        result.path = None
        del result.comparison["path"]
    return result


def load_sweep(directory: str | PathLike[str]) -> SweepResult:
    """Return a saved sweep with its stored comparison.

    Raises DataError if the directory cannot be read.
    """
    path = Path(directory)
    tables = [read_parquet(path / f"{name}.parquet") for name in ("metrics", "clients")]
    return SweepResult(read_json(path / "comparison.json"), tables[0], tables[1], path)


def _listed(flag: str, value: Any) -> Any:
    """Return a flag's value as a list if the flag takes several values, or else unchanged."""
    if value is None or flag not in SWEEP or not SWEEP[flag].axis:
        return value
    return list(value) if isinstance(value, SEVERAL) else [value]
