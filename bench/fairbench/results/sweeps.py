"""The swept parameters (axes) of a stored sweep, and the metrics of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.results.comparison import SchedulerResults, by_place

KEY = re.compile(r" (?:(\S+)=(\S+)|(dp|prefill|decode) (\d+))(?= |$)")
NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")
MOST_TICKS = 12  # An axis with evenly spaced values has at most this number of labelled ticks.
LOG_FROM = 8.0  # An axis is logarithmic if its values differ by at least this factor.
LABELS = {"dp": "replicas (dp)", "request_rate": "programs/s per client"}


class SweepLine(NamedTuple):
    """A scheduler's results in a configuration, one for each value of a swept parameter.

    The names of configuration and scheduler do not contain the swept parameter.
    """

    place: str
    scheduler: str
    points: tuple[tuple[float, SchedulerResults], ...]


class SweepAxis(NamedTuple):
    """A swept parameter with at least two numeric values, and the results at these values."""

    name: str
    lines: tuple[SweepLine, ...]

    @property
    def label(self) -> str:
        """The label of the swept parameter on a chart's axis."""
        return LABELS.get(self.name, self.name)

    @property
    def values(self) -> list[float]:
        """The values of the swept parameter, in ascending order."""
        return sorted({value for line in self.lines for value, _ in line.points})

    @property
    def is_log(self) -> bool:
        """Whether the values span such a wide range that the axis is logarithmic."""
        values = self.values
        return values[0] > 0 and values[-1] >= LOG_FROM * values[0]

    @property
    def ticks(self) -> list[float]:
        """The values of the swept parameter as axis ticks, or [] if the labels do not all fit."""
        at = [log(value) if self.is_log else value for value in self.values]
        least = (at[-1] - at[0]) / MOST_TICKS
        return self.values if min(high - low for low, high in pairwise(at)) >= least else []

    @property
    def schedulers(self) -> list[str]:
        """The names of all schedulers with results for the swept parameter."""
        return list(dict.fromkeys(line.scheduler for line in self.lines))

    @property
    def places(self) -> dict[str, list[SweepLine]]:
        """The curves of metrics over the swept parameter, grouped by configuration."""
        return {
            place: [line for line in self.lines if line.place == place]
            for place in dict.fromkeys(line.place for line in self.lines)
        }


class _Named(NamedTuple):
    """A scheduler's results; ``keys`` has the parameters in scheduler and configuration names."""

    cell: SchedulerResults
    keys: Mapping[str, str]

    def number(self, key: str) -> float | None:
        value = self.keys.get(key, "")
        return float(value) if NUMBER.fullmatch(value) else None

    def without(self, keys: Iterable[str]) -> tuple[str, str]:
        return _without(self.cell.place, keys), _without(self.cell.scheduler, keys)


def axes_of(cells: Sequence[SchedulerResults]) -> list[SweepAxis]:
    """Return every numeric parameter (axis) that a sweep varies.

    Parameters whose values always change together form one axis. A scheduler without a swept
    parameter has a single result, which is drawn as a horizontal line.
    """
    named = [_Named(cell, _keys(f"{cell.place} {cell.scheduler}")) for cell in cells]
    found: list[SweepAxis] = []
    followers: set[str] = set()
    for key in dict.fromkeys(key for one in named for key in one.keys):
        together = {key, *_followers(key, named)}
        lines = _lines(key, together, named)
        if lines and key not in followers:
            found.append(SweepAxis(key, (*lines, *_constant(key, lines, named))))
            followers |= together
    return found


def _keys(name: str) -> dict[str, str]:
    return {one[1] or one[3]: one[2] or one[4] for one in KEY.finditer(name)}


def _without(name: str, keys: Iterable[str]) -> str:
    return KEY.sub(lambda one: "" if (one[1] or one[3]) in keys else one[0], f" {name}")[1:]


def _followers(key: str, named: Sequence[_Named]) -> set[str]:
    """Return the keys whose values vary, and whose values follow from the value of ``key``."""
    mine = [one for one in named if key in one.keys]
    several = {
        other
        for one in mine
        for other in one.keys
        if len({each.keys.get(other) for each in mine}) > 1
    }
    return {
        other
        for other in several - {key}
        if len({(one.keys[key], one.keys.get(other)) for one in mine})
        == len({one.keys[key] for one in mine})
    }


def _lines(key: str, together: Iterable[str], named: Sequence[_Named]) -> list[SweepLine]:
    groups: dict[tuple[str, str], dict[float, SchedulerResults]] = {}
    for one in named:
        if (value := one.number(key)) is not None:
            groups.setdefault(one.without(together), {})[value] = one.cell
    return [
        SweepLine(*names, tuple(sorted(points.items(), key=lambda point: point[0])))
        for names, points in groups.items()
        if len(points) > 1
    ]


def _constant(key: str, lines: Sequence[SweepLine], named: Sequence[_Named]) -> list[SweepLine]:
    """Return horizontal lines, per configuration, for schedulers without the swept parameter."""
    places = by_place(one.cell for one in named)
    found = []
    for place in dict.fromkeys(line.place for line in lines):
        values = [value for line in lines if line.place == place for value, _ in line.points]
        for cell in places.get(place, ()):
            if key not in _keys(f" {cell.scheduler}"):  # The pattern ``KEY`` begins with a space.
                ends = ((min(values), cell), (max(values), cell))
                found.append(SweepLine(place, cell.scheduler, ends))
    return found


BOUNDS = ("censored", "upper_bounds")


def write_metrics(folder: Path, cells: Sequence[SchedulerResults]) -> None:
    """Write the tables ``metrics`` and ``clients`` into ``folder``, each as .csv and .parquet.

    Every row begins with the directory, configuration, scheduler and seed of a run. The columns
    ``censored`` and ``upper_bounds`` list the keys of metrics that are lower or upper bounds,
    separated by spaces.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    for name, rows in (("metrics", metric_rows(cells)), ("clients", client_rows(cells))):
        listed = list(rows)
        # Summaries of live runs have more keys than summaries of simulations.
        nothing = dict.fromkeys(key for row in listed for key in row)
        table = pa.Table.from_pylist([{**nothing, **row} for row in listed])
        with (folder / f"{name}.csv").open("wb") as file:
            pa.csv.write_csv(table, file)
        with (folder / f"{name}.parquet").open("wb") as file:
            pq.write_table(table, file, compression="zstd")


def metric_rows(cells: Sequence[SchedulerResults]) -> Iterator[dict[str, Any]]:
    """Yield a row per run, with all values of the summary that are not nested."""
    for labels, summary in _runs(cells):
        flat = {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
        yield {**labels, **flat, **{key: " ".join(summary[key]) for key in BOUNDS}}


def client_rows(cells: Sequence[SchedulerResults]) -> Iterator[dict[str, Any]]:
    """Yield one row for each client of each run."""
    for labels, summary in _runs(cells):
        for client in summary["clients"]:
            prefix = f"clients.{client['client']}."
            bounds = {
                key: " ".join(k.removeprefix(prefix) for k in summary[key] if k.startswith(prefix))
                for key in BOUNDS
            }
            yield {**labels, **client, **bounds}


def _runs(cells: Sequence[SchedulerResults]) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    for cell in cells:
        for one in cell.runs:
            labels = {
                "run": one.run.path.name,
                "place": cell.place,
                "cell": cell.scheduler,
                "seed": one.summary["seed"],
            }
            yield labels, one.summary
