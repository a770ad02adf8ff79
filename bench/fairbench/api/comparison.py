"""The function that compares experiments seed by seed, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from fairbench.api.result import Result, frame, html_table, saved_in
from fairbench.config.flags import CompareFlags
from fairbench.errors import UsageError
from fairbench.execute.comparison import check_usage, codes_of, compare_experiments
from fairbench.figures import comparison_figure, latex_table
from fairbench.report.pair_table import contrast_text, main_metrics, shown_metrics
from fairbench.report.progress import shown_progress
from fairbench.results import comparison
from fairbench.results.experiments import Label, grid_labels

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

One = Result | str | PathLike[str]


class Comparison:
    """A comparison of schedulers, as returned by ``compare``.

    ``runs`` is an Arrow table with the metrics of each run, one row per run. The first columns of
    ``runs`` are ``place`` (the configuration), ``run`` (the scheduler) and ``seed``.

    ``differences`` has one row per metric and pair of experiments. Each row of ``differences`` has
    the two means, the difference over runs with equal seeds, and its 95% confidence interval. The
    verdict on a difference is ``better``, ``worse``, ``same``, or inconclusive. For an inconclusive
    difference, a row estimates how many more seeds are needed.

    ``print(comparison)`` shows the output of ``fairbench compare``.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[comparison.SchedulerResults]],
        metrics: Sequence[str] | None,
        *,
        paired: bool = False,
        every: bool = False,
    ) -> None:
        """Compare the first experiment of each group with the other experiments of the group.

        If ``every`` is True, all metrics are shown, not only the main metrics. If ``paired`` is
        True, two experiments that have no seed in common are an error.
        """
        self._sides = [side for group in groups for side in group]
        if metrics:
            comparison.check_metrics(metrics, self._sides)
        known = comparison.known_metrics(self._sides)
        self._metrics = metrics or known
        usual = (shown_metrics if every else main_metrics)(self._sides)
        self._usual = metrics or [key for key in usual if key in known]
        self._pairs = [
            (group[0], other)
            for group in groups
            for other in group[1:]
            if paired or group[0].by_seed.keys() & other.by_seed.keys()
        ]

    @cached_property
    def contrasts(self) -> list[comparison.Contrast]:
        """The differences between each pair of experiments in the chosen metrics (default: all)."""
        return [comparison.contrast(*pair, self._metrics) for pair in self._pairs]

    @cached_property
    def shown(self) -> list[comparison.Contrast]:
        """The differences of all pairs in the chosen metrics (default: the main metrics)."""
        return [comparison.contrast(*pair, self._usual) for pair in self._pairs]

    @cached_property
    def runs(self) -> pa.Table:
        """The metrics of all runs as an Arrow table, one row per run."""
        return _runs([run for side in self._sides for run in side.by_seed.values()])

    @cached_property
    def differences(self) -> pa.Table:
        """The differences as an Arrow table, one row per metric and pair of experiments."""
        return _differences(self.contrasts)

    def to_pandas(self) -> pandas.DataFrame:
        """Return ``differences`` as a pandas data frame, with one row per metric and pair.

        Raises UsageError if pandas is not installed.
        """
        return frame(self.differences)

    def plot(self, kind: str = "tradeoff") -> Figure:
        """Draw bar charts, a plot of latency against throughput, or distributions of latencies.

        ``kind`` is ``bars`` (with confidence intervals), ``tradeoff`` or ``cdf``. Raises UsageError
        for an unknown kind of plot, for a ``cdf`` of runs that were not saved, and if the plot
        extra is not installed.
        """
        return comparison_figure(self._sides, kind)

    def latex(self, columns: Sequence[str] = ()) -> str:
        """Return the comparison as a LaTeX table (package booktabs) that fits into a column.

        ``columns`` are metrics, such as ``victim_p95_s``; the default is as many metrics as fit
        into a column of a two-column paper. Raises UsageError for a metric that the runs lack.
        """
        return latex_table(self._sides, columns)

    def __str__(self) -> str:
        return contrast_text(self.shown).rstrip("\n")

    def _repr_html_(self) -> str:
        columns = (
            *("other", "place", "metric", "baseline_mean", "other_mean", "difference"),
            *("low", "high", "decision"),
        )
        rows = _differences(self.shown).to_pylist()
        return html_table("Differences from the baseline", rows, columns)

    def __repr__(self) -> str:
        return f"<fairbench.Comparison {self.runs.num_rows} runs, {len(self.shown)} pairs>"


def compare(
    *sides: One | Sequence[Result],
    settings: Mapping[str, Any] | None = None,
    num_runs: int | None = None,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    result_dir: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    show_progress: bool = False,
    **flags: Unpack[CompareFlags],
) -> Comparison:
    """Compare several experiments with the first one, over runs with equal seeds.

    Each argument is an experiment: a result, a list of results, a directory of stored runs, or the
    name of a scheduler or experiment file, which is then run. New runs accept the flags of
    ``fairbench compare`` as keyword arguments, and ``settings`` like the function ``run``. New runs
    are saved in a new directory in ``result_dir``; without ``result_dir``, no files remain.

    If the only argument is a directory, each scheduler in the directory is compared with the
    scheduler ``baseline``. ``resume`` continues the comparison in the given directory, optionally
    with more seeds (``num_runs``).

    Raises UsageError for experiments that cannot be compared, and the errors of ``sweep``.
    """
    wanted = {key: value for key, value in flags.items() if value is not None}
    words = [str(one) for one in sides if isinstance(one, str | PathLike)]
    if words and len(words) < len(sides):
        raise UsageError(
            "results and names or directories cannot be mixed: give only results, or only "
            "names and directories"
        )
    if resume is None and not words and len(codes_of(wanted)) < 2:
        check_usage([""] * len(sides), None, baseline, given=[*wanted, *(settings or {})])
        if num_runs:
            raise UsageError(
                "num_runs cannot be given with results, because no new runs are made; leave it out"
            )
        return Comparison(list(comparison.by_place(_sides(sides)).values()), metrics)
    with saved_in(result_dir, resume) as parent:
        compared = compare_experiments(
            *(words, wanted, settings or {}),
            num_runs=num_runs,
            baseline=baseline,
            resume=None if resume is None else Path(resume),
            parent=parent,
            progress=shown_progress() if show_progress else None,
            metrics=metrics or (),
        )
    if compared.outcome is not None:
        compared.outcome.require_whole()
    return Comparison(compared.groups, metrics)


def _sides(given: Sequence[One | Sequence[Result]]) -> list[comparison.SchedulerResults]:
    """Group results by experiment; a repeated seed begins a new group."""
    rounds: list[list[comparison.ComparedRun]] = [[]]
    for one in given:
        if isinstance(one, Result):
            _put(rounds, _compared(one))
        elif isinstance(one, Sequence) and all(isinstance(each, Result) for each in one):
            rounds.append([_compared(each) for each in one if isinstance(each, Result)])
        else:
            raise UsageError(
                f"{one!r}: must be a Result, a list of Results, the name of a scheduler, or a "
                "directory"
            )
    sides = [side for runs in rounds for side in comparison.sides_of(runs)]
    found: dict[Label, int] = {}
    named = []
    for side, label in zip(
        sides, grid_labels([one.first.experiment for one in sides]), strict=True
    ):
        found[label] = found.get(label, 0) + 1
        name = label.scheduler if found[label] == 1 else f"{label.scheduler} ({found[label]})"
        named.append(replace(side, place=label.place, scheduler=name))
    return named


def _put(rounds: list[list[comparison.ComparedRun]], run: comparison.ComparedRun) -> None:
    for runs in rounds:
        if all(run.experiment != other.experiment for other in runs):
            runs.append(run)
            return
    rounds.append([run])


def _compared(result: Result) -> comparison.ComparedRun:
    return comparison.ComparedRun(result.stored_run, result.experiment, result.summary)


def _runs(found: Sequence[comparison.ComparedRun]) -> pa.Table:
    named = grid_labels([run.experiment for run in found])
    rows = [
        {"place": place, "run": scheduler}
        | {key: one for key, one in run.summary.items() if not isinstance(one, list | dict)}
        for (place, scheduler), run in zip(named, found, strict=True)
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    return pa.Table.from_pylist([{key: row.get(key) for key in keys} for row in rows])


def _differences(contrasts: Sequence[comparison.Contrast]) -> pa.Table:
    rows = [
        {
            "place": one["place"],
            "baseline": one["baseline"],
            "other": one["other"],
            "metric": metric,
            **{f"{key}_mean" if key in ("baseline", "other") else key: v for key, v in row.items()},
        }
        for one in comparison.contrast_json(contrasts)["comparisons"]
        for metric, row in one["metrics"].items()
    ]
    return pa.Table.from_pylist(rows)
