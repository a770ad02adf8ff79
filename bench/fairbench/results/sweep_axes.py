"""The numeric axes of a sweep, such as replicas, a load or a parameter, by the names of cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

from fairbench.results.comparison import SchedulerResults, by_place

KEY = re.compile(r" (?:(\S+)=(\S+)|(dp|prefill|decode) (\d+))(?= |$)")
NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")
MOST_TICKS = 12  # limit on the labels of an axis, if its values are evenly spaced
LOG_FROM = 8.0  # multiple of the smallest value from which on an axis is logarithmic
LABELS = {"dp": "replicas (dp)", "request_rate": "programs/s per client"}


class Line(NamedTuple):
    """A scheduler in one configuration, with its cell at each value of an axis, in ascending order.

    The names of the configuration and of the scheduler lack the axis.
    """

    place: str
    scheduler: str
    points: tuple[tuple[float, SchedulerResults], ...]


class Axis(NamedTuple):
    """A key with at least two numeric values, and the lines over these values."""

    name: str
    lines: tuple[Line, ...]

    @property
    def label(self) -> str:
        """The name of the axis below a chart."""
        return LABELS.get(self.name, self.name)

    @property
    def values(self) -> list[float]:
        """The values of the axis, in ascending order."""
        return sorted({value for line in self.lines for value, _ in line.points})

    @property
    def is_log(self) -> bool:
        """Whether the values are so far apart that the axis is logarithmic."""
        values = self.values
        return values[0] > 0 and values[-1] >= LOG_FROM * values[0]

    @property
    def ticks(self) -> list[float]:
        """The values if each can have a label below a chart, else nothing."""
        at = [log(value) if self.is_log else value for value in self.values]
        least = (at[-1] - at[0]) / MOST_TICKS
        return self.values if min(high - low for low, high in pairwise(at)) >= least else []

    @property
    def schedulers(self) -> list[str]:
        """The schedulers of the lines, each once."""
        return list(dict.fromkeys(line.scheduler for line in self.lines))

    @property
    def places(self) -> dict[str, list[Line]]:
        """The lines of each configuration."""
        return {
            place: [line for line in self.lines if line.place == place]
            for place in dict.fromkeys(line.place for line in self.lines)
        }


class _Named(NamedTuple):
    """A cell, and the keys that the names of its configuration and of its scheduler contain."""

    cell: SchedulerResults
    keys: Mapping[str, str]

    def number(self, key: str) -> float | None:
        value = self.keys.get(key, "")
        return float(value) if NUMBER.fullmatch(value) else None

    def without(self, keys: Iterable[str]) -> tuple[str, str]:
        return _without(self.cell.place, keys), _without(self.cell.scheduler, keys)


def axes_of(cells: Sequence[SchedulerResults]) -> list[Axis]:
    """Return every numeric axis of some cells; keys that always vary together are one axis.

    A scheduler without the parameter of an axis has one value, which is a line over the whole axis.
    """
    named = [_Named(cell, _keys(f"{cell.place}{_padded(cell.scheduler)}")) for cell in cells]
    found: list[Axis] = []
    followers: set[str] = set()
    for key in dict.fromkeys(key for one in named for key in one.keys):
        together = {key, *_followers(key, named)}
        lines = _lines(key, together, named)
        if lines and key not in followers:
            found.append(Axis(key, (*lines, *_constant(key, lines, named))))
            followers |= together
    return found


def _keys(name: str) -> dict[str, str]:
    return {one[1] or one[3]: one[2] or one[4] for one in KEY.finditer(name)}


def _padded(scheduler: str) -> str:
    """Return the keys of a scheduler's name; the first word is the name itself."""
    return f" {scheduler}"


def _without(name: str, keys: Iterable[str]) -> str:
    return KEY.sub(lambda one: "" if (one[1] or one[3]) in keys else one[0], f" {name}")[1:]


def _followers(key: str, named: Sequence[_Named]) -> set[str]:
    """Return the other keys with several values, each of which ``key`` determines."""
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


def _lines(key: str, together: Iterable[str], named: Sequence[_Named]) -> list[Line]:
    groups: dict[tuple[str, str], dict[float, SchedulerResults]] = {}
    for one in named:
        if (value := one.number(key)) is not None:
            groups.setdefault(one.without(together), {})[value] = one.cell
    return [
        Line(*names, tuple(sorted(points.items(), key=lambda point: point[0])))
        for names, points in groups.items()
        if len(points) > 1
    ]


def _constant(key: str, lines: Sequence[Line], named: Sequence[_Named]) -> list[Line]:
    """Return a line for each scheduler that lacks the parameter in a configuration of the lines."""
    places = by_place(one.cell for one in named)
    found = []
    for place in dict.fromkeys(line.place for line in lines):
        values = [value for line in lines if line.place == place for value, _ in line.points]
        for cell in places.get(place, ()):
            if key not in _keys(_padded(cell.scheduler)):
                ends = ((min(values), cell), (max(values), cell))
                found.append(Line(place, cell.scheduler, ends))
    return found
