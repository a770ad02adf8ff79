"""A table of all measured runs, by engine, GPU, model and kind of prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Group
from rich.text import Text

from fairbench.report.numbers import UNDEFINED
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_studies.validation.overview.points import (
    FIRST_TOKEN,
    METRICS,
    THROUGHPUT,
    TIME_PER_TOKEN,
    Point,
)
from fairbench_studies.validation.report import LONG_TTFT_S

WITHIN_PCT = {THROUGHPUT: 5.0, TIME_PER_TOKEN: 5.0, FIRST_TOKEN: 10.0}
"""The largest error in percent at which a run counts as accurate, by metric."""


class Row(NamedTuple):
    """The measured runs of one engine, GPU and model with one kind of prompts.

    Attributes:
        server: The engine, the GPU and the model.
        prompts: The kind of prompts in the runs.
        tested: The runs to which neither a timing profile nor a cost was fitted.
        fitted: The number of runs to which a timing profile or a cost was fitted.
        repeats: The number of sets of repeated runs.
        spreads_pct: For each metric, the largest spread: the difference between the largest and the
            smallest measured value in a set of repeated runs, in percent of the set's mean.
    """

    server: tuple[str, str, str]
    prompts: str
    tested: list[Point]
    fitted: int
    repeats: int
    spreads_pct: dict[str, float]

    def errors_pct(self, metric: str) -> list[float]:
        """Return a metric's simulation errors (%) for the runs that were not used for a fit."""
        return errors_pct(self.tested, metric)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON-compatible values."""
        engine, gpu, model = self.server
        return {
            **{"engine": engine, "gpu": gpu, "model": model, "prompts": self.prompts},
            **{"runs": len(self.tested), "fitted_runs": self.fitted},
            "metrics": {name: _summary(self.errors_pct(name), name) for name in METRICS},
            "repeats": self.repeats,
            "spreads_pct": self.spreads_pct,
        }


def errors_pct(points: Sequence[Point], metric: str) -> list[float]:
    """Return a metric's simulation errors (%) for the runs in which the metric is defined."""
    errors = (point.pairs[metric].error_pct for point in points if metric in point.pairs)
    return [error for error in errors if error is not None]


def rows_of(points: Sequence[Point]) -> list[Row]:
    """Return the rows of the table, sorted by server and kind of prompts."""
    groups: dict[tuple[tuple[str, str, str], str], list[Point]] = defaultdict(list)
    for point in points:
        groups[(point.engine, point.gpu, point.model), point.prompts].append(point)
    return [_row(server, prompts, some) for (server, prompts), some in sorted(groups.items())]


def _row(server: tuple[str, str, str], prompts: str, points: list[Point]) -> Row:
    sets: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        sets[point.repeat].append(point)
    repeated = [some for some in sets.values() if len(some) > 1]
    tested = [point for point in points if not point.fitted]
    spreads = {
        metric: max(found)
        for metric in METRICS
        if (found := [one for some in repeated for one in _spread_pct(some, metric)])
    }
    return Row(server, prompts, tested, len(points) - len(tested), len(repeated), spreads)


def _spread_pct(repeats: Sequence[Point], metric: str) -> Iterator[float]:
    """Yield the spread (%) of a metric over repeated runs, if at least two runs measured it."""
    values = [one.pairs[metric].measured for one in repeats if metric in one.pairs]
    if len(values) > 1:
        yield 100 * (max(values) - min(values)) * len(values) / sum(values)


def _summary(errors: Sequence[float], metric: str) -> dict[str, Any]:
    return {
        "runs": len(errors),
        "within": _within(errors, metric),
        "within_pct": WITHIN_PCT[metric],
        "worst_pct": max(errors, key=abs) if errors else None,
    }


def _within(errors: Sequence[float], metric: str) -> int:
    return sum(abs(error) <= WITHIN_PCT[metric] for error in errors)


def overview_text(points: Sequence[Point]) -> str:
    """Return the table of measured runs as text, with a line that summarizes all runs."""
    rows = rows_of(points)
    tested = [point for row in rows for point in row.tested]
    limits = ", ".join(f"{name} {WITHIN_PCT[name]:g}%" for name in METRICS)
    head = (
        "simulated against measured runs, by server and kind of prompts",
        f"cells: runs within a limit ({limits}) of all runs with the metric, and the largest error",
        f"TTFT P50 counts above {LONG_TTFT_S:g} s. +N: N more runs, to which something was fitted",
        "repeats: sets of repeated runs, and the largest spread within a set of measured tok/s, "
        "TPOT and TTFT",
    )
    table = plain_table(
        "server", "prompts", "runs", "tok/s", "TPOT P50", "TTFT P50", "repeats", gap=1
    )
    for row in rows:
        runs = f"{len(row.tested)}" + (f" +{row.fitted}" if row.fitted else "")
        cells = (_cell(row.errors_pct(name), name) for name in METRICS)
        table.add_row(" ".join(row.server), row.prompts, runs, *cells, _repeats(row))
    fitted = sum(row.fitted for row in rows)
    totals = (_cell(errors_pct(tested, name), name) for name in METRICS)
    every = f"{len(tested)}" + (f" +{fitted}" if fitted else "")
    table.add_row("all", "", every, *totals, f"{sum(row.repeats for row in rows)}")
    blocks = (Text("\n".join(head)), Text(), table)
    return printed(Group(*blocks), colour=False, width=MAX_WIDTH)


def _cell(errors: Sequence[float], metric: str) -> str:
    if not errors:
        return UNDEFINED
    return f"{_within(errors, metric)}/{len(errors)} ({max(errors, key=abs):+.0f}%)"


def _repeats(row: Row) -> str:
    if not row.repeats:
        return ""
    spreads = (row.spreads_pct.get(name) for name in METRICS)
    shown = "/".join(UNDEFINED if one is None else f"{one:.0f}%" for one in spreads)
    return f"{row.repeats}: {shown}"
