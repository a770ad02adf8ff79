"""The HTML page of a capacity plan: the answer, charts of the targets, and the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.config.sweep import sweep_toml
from fairbench.errors import DataError
from fairbench.metrics.catalogue import metric_of
from fairbench.report.numbers import number
from fairbench.report.pages import page
from fairbench.report.pages.chart import ChartPoint, PointSeries, point_chart
from fairbench.report.palette import scheduler_series
from fairbench.results.store import ANSWER, SWEEP_FILE, SweepStore, read_json
from fairbench_logs.planning.question import USERS
from fairbench_logs.planning.table import (
    head_lines,
    needed_line,
    remarks_of,
    size_of,
    target_text,
    unlike_line,
)

Row = Mapping[str, Any]
LOAD = ", {:g} x the load"


def plan_page(path: Path) -> page.Page:
    """Return the report page of a capacity plan; raise DataError if the plan is not finished."""
    if not (path / ANSWER).is_file():
        raise DataError(
            f"{path}: this plan is not finished; finish it with: fairbench plan --resume {path}"
        )
    answer = read_json(path / ANSWER)
    remarks = list(remarks_of(answer))
    return page.Page(
        title=plan_title(answer),
        provenance=". ".join(head_lines(answer)) + ".",
        headlines=[_headline(answer, row) for row in answer["choices"]],
        warnings=[
            *filter(None, [unlike_line(answer)]),
            *([f"Synthetic: {answer['synthetic']}."] if answer.get("synthetic") else []),
        ],
        sections=[
            *([page.Section("Remarks", [page.Bullets(remarks)])] if remarks else []),
            *_curves(answer),
            page.Section(
                f"Every number of {size_of(answer)} that was simulated", list(_grids(answer))
            ),
            page.Section(
                SWEEP_FILE, [page.Code(sweep_toml(SweepStore(path).sweep()))], folded=True
            ),
        ],
    )


def plan_title(answer: Row) -> str:
    """Return a plan's answer in one line: the replicas that each scheduler needs.

    The line ends with the percentage of GPUs or cost that the first scheduler saves, compared with
    the most expensive choice.
    """
    load = answer["choices"][0]["load"]
    if size_of(answer) == USERS:
        return needed_line(answer).removesuffix(".")
    first, *others = rows = [row for row in answer["choices"] if row["load"] == load]
    texts = [f"{_replica_count(row, answer)} with {_choice(row, answer)}" for row in rows]
    texts[0] = texts[0].replace(" with", f" {_replicas(first)} with", 1)
    at = "" if load == 1 else f" at {load:g} times the load"
    return f"{', '.join(texts)}{at}{_saved(first, others)}"


def _saved(first: Row, others: Sequence[Row]) -> str:
    """Return as text how much the choice ``first`` saves against the most expensive choice.

    A choice is a combination of a scheduler and a type of GPU. If no choice is more expensive than
    ``first``, the text says how much the cheapest choice saves against ``first``.
    """
    if first["replicas"] is None:
        return ""
    key = "cost" if first["cost"] is not None else "gpus"
    known = [row for row in others if row[key] is not None]
    same = [
        row for row in known if key == "cost" or row["timing_profile"] == first["timing_profile"]
    ]
    if not same:
        return ""
    most = max(same, key=lambda row: float(row[key]))
    part = 1 - first[key] / most[key]
    what = "of the price" if key == "cost" else "of the GPUs"
    if part > 0:
        return f": {first['scheduler']} saves {part:.0%} {what}"
    least = min(same, key=lambda row: float(row[key]))
    part = 1 - least[key] / first[key]
    return f": {least['scheduler']} saves {part:.0%} {what}" if part > 0 else ": no difference"


def _choice(row: Row, answer: Row, load: str = "") -> str:
    """Return the name of a choice: its scheduler, its GPU if there are several, and its load.

    ``load`` is the format of the load factor, which is left out if it is 1.
    """
    several = len({one["timing_profile"] for one in answer["choices"]}) > 1
    name = f"{row['scheduler']} on {row['gpu']}" if several else str(row["scheduler"])
    return name + (load.format(row["load"]) if row["load"] != 1 else "")


def _replica_count(row: Row, answer: Row) -> str:
    return f"more than {answer['high']}" if row["replicas"] is None else f"{row['replicas']}"


def _replicas(row: Row) -> str:
    return "replica" if row["replicas"] == 1 else "replicas"


def _headline(answer: Row, row: Row) -> page.Headline:
    price = "" if row["cost"] is None else f"{number(row['cost'])} an hour; "
    reached = "; ".join(f"{one['slo']}: {target_text(one)}" for one in row["targets"])
    if size_of(answer) == USERS:
        count = "none" if row[USERS] is None else f"{row[USERS]} users"
    else:
        count = f"{_replica_count(row, answer)} {_replicas(row)}"
    return page.Headline(_choice(row, answer, LOAD), count, f"{price}{reached}")


def _curves(answer: Row) -> Iterator[page.Section]:
    figures: list[page.Block] = []
    for place, target in enumerate(answer["targets"]):
        series = [one for one in _series(answer, place) if one.points]
        if series:
            figures.append(_curve(target, series, size_of(answer)))
    if figures:
        yield page.Section(f"Targets against {size_of(answer)}", figures)


def _curve(target: Row, series: Sequence[PointSeries], size: str) -> page.Figure:
    entry, factor = metric_of(target["metric"]), _factor(target)
    percent = factor > 1
    unit = "%" if percent else (entry.unit if entry is not None and entry.unit else "")
    measured = re.split("[<>]", target["slo"])[0]
    every = [point.y for one in series for point in one.points]
    log = not percent and min(every) > 0 and max(every) > 20 * min(every)
    chart = point_chart(
        target["slo"],
        series,
        x_label=size,
        y_label=f"{measured}{f', {unit}' if unit else ''}",
        log_y=log,
        limit=factor * target["limit"],
        whole_x=True,
    )
    good = "below" if target["below"] else "above"
    return page.Figure(
        chart,
        f"{target['slo']}: the target is met {good} the dashed line. Bars: 95% intervals "
        "over the seeds. Hollow marks: lower bounds.",
    )


def _series(answer: Row, place: int) -> Iterator[PointSeries]:
    """Yield the points of each scheduler and GPU in the chart of target number ``place``."""
    rows = answer["choices"]
    loads = len({row["load"] for row in rows}) > 1
    names = [_choice(row, answer) + (f" {row['load']:g} x" if loads else "") for row in rows]
    for row, name, swatch in zip(rows, names, scheduler_series(names), strict=True):
        judged = [(one[size_of(answer)], one.get("targets", ())) for one in row["tried"]]
        points = [_point(dp, targets[place]) for dp, targets in judged if len(targets) > place]
        known = [point for point in points if point is not None]
        yield PointSeries(name, swatch, sorted(known), joined=True)


def _factor(target: Row) -> float:
    entry = metric_of(target["metric"])
    return 1.0 if entry is None else entry.form.factor


def _point(size: int, target: Row) -> ChartPoint | None:
    if target["mean"] is None:
        return None
    factor = _factor(target)
    ends = None
    if target["low"] is not None and target["high"] is not None:
        ends = (factor * target["low"], factor * target["high"])
    return ChartPoint(size, factor * target["mean"], None, ends, bool(target["bound"]))


def _grids(answer: Row) -> Iterator[page.Grid]:
    size = size_of(answer)
    best = "most users" if size == USERS else "smallest sufficient cluster"
    table: list[list[page.Cell]] = []
    for row in answer["choices"]:
        table.append([page.Cell(_choice(row, answer, LOAD))])
        for one in sorted(row["tried"], key=lambda tried: int(tried[size])):
            values = [page.Cell(target_text(target)) for target in one.get("targets", ())]
            values += [page.Cell("-")] * (len(answer["targets"]) - len(values))
            answered = best if one[size] == row[size] else ""
            enough = page.Cell("met" if one["enough"] else "missed", detail=answered)
            table.append([page.Cell(f"{one[size]}"), *values, enough])
    headings = [size, *(target["slo"] for target in answer["targets"]), "targets"]
    yield page.Grid(headings, table)
