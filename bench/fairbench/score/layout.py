"""Layouts of other people's records, and how to read any of them as columns.

The fields of a request are ours; a layout says what they are called in a file:

client                          whose it is; without it each file is one client, called as the file
start                           when it was sent, on any clock
first_token or ttft             when its first token came, or how long after the start
end or latency or itls          when its last came, how long after the start, or all gaps between
input_tokens, output_tokens     how many
program, worker, cached_tokens, admitted, status, error     optional

In the plain layout they may have other names that are common (``files.column_names``), and a name
that ends in a unit, such as ``ttft_ms``, says that of its times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.errors.printable import printable
from fairbench.files.column_names import nearest, recognised, split_unit
from fairbench.score.files import Object

FIRST, LAST = ("first_token", "ttft"), ("end", "latency", "itls")
TIMES = ("start", *FIRST, *LAST, "admitted")
OPTIONAL = ("program", "worker", "cached_tokens", "admitted", "status", "error")
FIELDS = ("client", "start", *FIRST, *LAST, "input_tokens", "output_tokens", *OPTIONAL)

Columns = dict[str, list[Any]]
"""Values by field, one per request; None where a record has none."""


class Shape(Enum):
    """What one object of a file is."""

    REQUEST = "a request"
    COLUMNS = "a run: lists with one entry per request"
    RESPONSES = "a run: the requests are listed under result.responses"


@dataclass(frozen=True, slots=True)
class Layout:
    """``columns`` is field -> name in the file. ``at_once``: requests have no start, all are 0.

    ``uncached``: the server has no prefix cache. ``keeps_clock``: times are of the run's own
    clock, so its zero is kept.
    """

    name: str
    shape: Shape
    columns: Mapping[str, str]
    at_once: bool = False
    uncached: bool = False
    keeps_clock: bool = False

    @property
    def units(self) -> dict[str, str]:
        """The units of times by field, where the names of columns say them."""
        found = {
            field: split_unit(self.columns[field])[1] for field in TIMES if field in self.columns
        }
        return {field: unit for field, unit in found.items() if unit is not None}

    def fits(self, item: Object) -> bool:
        """Whether an object may be in this layout: it has every column that is not optional."""
        needed = {name for field, name in self.columns.items() if field not in OPTIONAL}
        rows = _inner(item) if self.shape is Shape.RESPONSES else [item]
        if not rows or not isinstance(rows[0], dict) or not needed <= rows[0].keys():
            return False
        lists = all(isinstance(rows[0][name], list) for name in needed)
        return lists is (self.shape is Shape.COLUMNS)

    def mapped(self, names: Mapping[str, str]) -> Layout:
        """With other names for some fields; a field replaces those that say the same otherwise."""
        replaced = {other for group in (FIRST, LAST) for other in group if set(group) & set(names)}
        kept = {field: name for field, name in self.columns.items() if field not in replaced}
        return replace(
            self, columns={**kept, **names}, at_once=self.at_once and "start" not in names
        )


_BENCH = {"input_tokens": "input_lens", "output_tokens": "output_lens", "ttft": "ttfts"}
_BENCH |= {"itls": "itls", "cached_tokens": "cached_tokens", "error": "errors"}
_VTC = {"start": "req_time", "ttft": "first_token_latency", "latency": "request_latency"}
_VTC |= {"input_tokens": "prompt_len", "output_tokens": "output_len"}
_OWN = {"start": "arrival_s", "first_token": "first_token_s", "end": "finish_s"}
_OWN |= {"admitted": "admitted_s", "program": "program_id"}
_AIPERF = {"start": "start", "ttft": "time_to_first_token", "latency": "request_latency"}
_AIPERF |= {"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}
_AIPERF |= {"cached_tokens": "cached_tokens", "error": "error"}
_SAME = ("client", "input_tokens", "output_tokens", "worker", "cached_tokens", "status", "error")
_PLAIN = ("client", "start", "first_token", "end", "input_tokens", "output_tokens", *OPTIONAL)

# Our fields that have names which are common, and what ``files.column_names`` calls them.
ALIASES = {"start": "time", "program": "session"}
_ALIKE = ("client", "input_tokens", "output_tokens", "first_token", "ttft", "end", "latency")
ALIASES |= {field: field for field in _ALIKE}

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("lines", Shape.REQUEST, {field: field for field in _PLAIN}),
        Layout(
            "fairbench", Shape.REQUEST, {field: field for field in _SAME} | _OWN, keeps_clock=True
        ),
        Layout("vtc", Shape.RESPONSES, {"client": "adapter_dir", **_VTC}, uncached=True),
        Layout("vtc-columns", Shape.COLUMNS, {"client": "client", **_VTC}, uncached=True),
        Layout("vllm", Shape.COLUMNS, {"start": "start_times", **_BENCH}),
        Layout("sglang", Shape.COLUMNS, _BENCH, at_once=True),
        Layout("aiperf", Shape.REQUEST, _AIPERF),  # as ``score.aiperf`` has flattened it
    )
}


def parse_map(texts: Iterable[str]) -> dict[str, str]:
    """``FIELD=NAME`` each. Raises UsageError for anything else, or an unknown field."""
    names = {}
    for text in texts:
        field, equals, name = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--map {text}: must be FIELD=NAME, such as client=user_id")
        if field not in FIELDS:
            raise unknown_name("field in --map", field, FIELDS)
        names[field] = name
    return names


def choose_layout(name: str | None, item: Object, where: str, names: Mapping[str, str]) -> Layout:
    """The layout called ``name``, or the first that fits, with the fields that are mapped.

    Raises UsageError for an unknown name, DataError if none fits.
    """
    mapped = [layout.mapped(names) for layout in _known_by(item).values()]
    common = _common(item).mapped(names)
    if name is not None:
        if name not in LAYOUTS:
            raise unknown_name("layout", name, LAYOUTS)
        return next(layout for layout in (common, *mapped) if layout.name == name)
    for layout in (*mapped, common):
        if layout.fits(item):
            return layout
    missing = {
        field: name
        for field, name in common.columns.items()
        if field not in OPTIONAL and name not in item
    }
    keys = ", ".join(printable(str(name)) for name in list(item)[:12])
    raise DataError(
        f"{where}: in no known layout; of the plain one it lacks {', '.join(missing.values())} "
        f"(has {keys}). Name the fields with --map FIELD=NAME.{_hint(missing, common, item)}"
    )


def _hint(missing: Iterable[str], common: Layout, item: Object) -> str:
    """Which column may have been meant for the first of the fields that has a near one."""
    values = {name for name, value in item.items() if not isinstance(value, list | dict)}
    free = values.difference(common.columns.values())
    found = ((field, nearest(ALIASES.get(field, field), free)) for field in missing)
    near = next((f"{field}={printable(name)}" for field, name in found if name), "")
    return f" Did you mean {near}?" if near else ""


def _known_by(item: Object) -> Mapping[str, Layout]:
    """The layouts; the plain one with whichever way an object has of telling its times."""
    ways = [next((field for field in group if field in item), group[0]) for group in (FIRST, LAST)]
    return LAYOUTS | {"lines": LAYOUTS["lines"].mapped({way: way for way in ways})}


def _common(item: Object) -> Layout:
    """The plain layout, by the names that are common where an object lacks ours."""
    common = recognised(item, ALIASES.values())
    names = {field: common[alias].name for field, alias in ALIASES.items() if alias in common}
    names |= {field: field for field in FIELDS if field in item}
    for group in (FIRST, LAST):
        ways = [field for field in group if field in names]
        for other in ways[1:]:
            del names[other]
    return LAYOUTS["lines"].mapped(names)


def columns_of(layout: Layout, objects: list[tuple[str, Object]], line: int | None) -> Columns:
    """The records of one run as columns. Raises DataError if they are not in this layout.

    ``line`` chooses among several runs in one file, from 1.
    """
    if layout.shape is Shape.REQUEST:
        if line is not None:
            raise UsageError(f"--line {line}: each line of this file is a request, not a run")
        where, rows = objects[0][0], [item for _, item in objects]
        return _transposed(layout, rows, where)
    where, item = _one_run(objects, line)
    if layout.shape is Shape.RESPONSES:
        return _transposed(layout, _inner(item), where)
    return _checked(
        layout, {f: item[n] for f, n in layout.columns.items() if n in item}, item, where
    )


def _one_run(objects: list[tuple[str, Object]], line: int | None) -> tuple[str, Object]:
    if line is None and len(objects) > 1:
        where = objects[0][0].rpartition(",")[0]
        raise UsageError(
            f"{where}: holds {len(objects)} runs: choose one with --line 1 to {len(objects)}"
        )
    number = line or 1
    if not 1 <= number <= len(objects):
        raise UsageError(f"--line {number}: must be between 1 and {len(objects)}")
    return objects[number - 1]


def _transposed(layout: Layout, rows: list[Any], where: str) -> Columns:
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{where}: every request must be a JSON object")
    used = {f: n for f, n in layout.columns.items() if any(n in row for row in rows)}
    columns = {field: [row.get(name) for row in rows] for field, name in used.items()}
    return _checked(layout, columns, {}, where)


def _checked(layout: Layout, columns: Columns, run: Object, where: str) -> Columns:
    """The columns, complete and equally long."""
    for field, name in layout.columns.items():
        if field not in OPTIONAL and field not in columns:
            raise DataError(f"{where}: missing {name!r} ({field})")
    first = columns["input_tokens"]
    length = len(first) if isinstance(first, list) else 0
    for field, values in columns.items():
        if not isinstance(values, list) or len(values) != length:
            name = layout.columns[field]
            raise DataError(f"{where}: {name!r} ({field}) must be a list, as long as the others")
    if not length:
        raise DataError(f"{where}: no records")
    if layout.at_once:
        columns["start"] = _at_once(run, length, where)
    if layout.uncached:
        columns["cached_tokens"] = [0] * length
    return columns


def _at_once(run: Object, length: int, where: str) -> list[Any]:
    """Starts of a run that sent everything at once; others cannot be told from its records."""
    if run.get("request_rate") != inf or run.get("max_concurrency") is not None:
        raise DataError(
            f"{where}: has no start times (sglang.bench_serving keeps none), so only a run at "
            "request_rate inf without max_concurrency can be scored; or --map start=NAME"
        )
    return [0.0] * length


def _inner(item: Object) -> list[Any]:
    result = item.get("result")
    rows = result.get("responses") if isinstance(result, dict) else None
    return rows if isinstance(rows, list) else []
