"""Layouts of external records, and their conversion to columns.

The fields of a request are ours; a layout gives their names in a file:

client                          whose it is; without it each file is one client, called as the file
start                           when it was sent, on any clock
first_token or ttft             when its first token came, or how long after the start
end or latency or itls          when its last came, how long after the start, or all gaps between
input_tokens, output_tokens     how many
program, worker, cached_tokens, admitted, status, error     optional
gaps                            optional: all gaps between tokens, where ``itls`` is not the end
id                              optional: what tells a request from all others

The plain layout also accepts other common names (``files.column_names``), and a name that ends in a
unit, such as ``ttft_ms``, gives the unit of its times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from fairbench.errors import DataError, UsageError, printable, unknown_name
from fairbench.files.column_names import VLLM, VTC, nearest, recognised, split_unit
from fairbench.files.json_text import inner
from fairbench.score.files import Object
from fairbench.score.tools import TOOLS, tool

FIRST, LAST = ("first_token", "ttft"), ("end", "latency", "itls")
TIMES = ("start", *FIRST, *LAST, "admitted")
OPTIONAL = ("program", "worker", "cached_tokens", "admitted", "status", "error", "gaps", "id")
LOOKED_AT = 100  # number of objects examined
FIELDS = ("client", "start", *FIRST, *LAST, "input_tokens", "output_tokens", *OPTIONAL)


class Shape(Enum):
    """The kind of object that a file holds."""

    REQUEST = "a request"
    COLUMNS = "a run: lists with one entry per request"
    RESPONSES = "a run: the requests are listed under result.responses"


@dataclass(frozen=True, slots=True)
class Layout:
    """Field -> name in the file. ``at_once`` means that all requests start at 0.

    ``uncached`` means that the server has no prefix cache. ``keeps_clock``: times are on the run's
    own clock, whose zero is kept. ``refuses``: a request without an end was turned away, for
    instance by a rate limiter, and has not failed. ``sessions``: programs are distinguished within
    each client, since two clients may use the same session numbers. ``also`` are columns that only
    some files have.
    """

    name: str
    shape: Shape
    columns: Mapping[str, str]
    at_once: bool = False
    uncached: bool = False
    keeps_clock: bool = False
    refuses: bool = False
    sessions: bool = False
    also: Mapping[str, str] = field(default_factory=dict)

    @property
    def units(self) -> dict[str, str]:
        """The units of times by field, if the names of columns contain them."""
        found = {
            field: split_unit(self.columns[field])[1]
            for field in (*TIMES, "gaps")
            if field in self.columns
        }
        return {field: unit for field, unit in found.items() if unit is not None}

    def fits(self, item: Object) -> bool:
        """Return whether an object has every column of the layout that is not optional."""
        needed = {name for field, name in self.columns.items() if field not in OPTIONAL}
        rows = responses_of(item) if self.shape is Shape.RESPONSES else [item]
        if not rows or not isinstance(rows[0], dict) or not needed <= rows[0].keys():
            return False
        lists = all(isinstance(rows[0][name], list) for name in needed)
        return lists is (self.shape is Shape.COLUMNS)

    def mapped(self, names: Mapping[str, str]) -> Layout:
        """Return the layout with other names for some fields, and without those named empty."""
        replaced = {other for group in (FIRST, LAST) for other in group if set(group) & set(names)}
        kept = {field: name for field, name in self.columns.items() if field not in replaced}
        columns = {field: name for field, name in {**kept, **names}.items() if name}
        return replace(
            self,
            columns=columns,
            at_once=self.at_once and "start" not in names,
            sessions=self.sessions and "program" not in names,
        )


_TOOL = {field: field for field in (*tool.FIELDS, *tool.OPTIONAL)}  # in the format of ``tools``
PLAIN = "lines"
_WHOLE = {"latency": "latencies"}  # instead of gaps, if the answer was not streamed
_OWN = {"start": "arrival_s", "first_token": "first_token_s", "end": "finish_s"}
_OWN |= {"admitted": "admitted_s", "program": "program_id"}
_AIPERF = {"start": "start", "ttft": "time_to_first_token", "latency": "request_latency"}
_AIPERF |= {"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}
_AIPERF |= {"cached_tokens": "cached_tokens", "error": "error", "gaps": "gaps"}
_SAME = ("client", "input_tokens", "output_tokens", "worker", "cached_tokens", "status", "error")
_OURS = ("client", "start", "first_token", "end", "input_tokens", "output_tokens", *OPTIONAL)

# Our fields whose names are common words, and their names in ``files.column_names``.
ALIASES = {"start": "time", "program": "session", "id": "request_id"}
_ALIKE = ("client", "input_tokens", "output_tokens", *FIRST, *LAST)
ALIASES |= {field: field for field in _ALIKE}
OURS = {name: field for field, name in ALIASES.items()}
_VTC, _VLLM = ({OURS.get(name, name): key for name, key in run.items()} for run in (VTC, VLLM))
_SGLANG = {field: key for field, key in _VLLM.items() if field != "start"}

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(PLAIN, Shape.REQUEST, {field: field for field in _OURS}),
        Layout(
            "fairbench", Shape.REQUEST, {field: field for field in _SAME} | _OWN, keeps_clock=True
        ),
        Layout(
            "vtc", Shape.RESPONSES, {**_VTC, "client": "adapter_dir"}, uncached=True, refuses=True
        ),
        Layout("vtc-columns", Shape.COLUMNS, _VTC, uncached=True, refuses=True),
        Layout("vllm", Shape.COLUMNS, _VLLM, also=_WHOLE),
        Layout("sglang", Shape.COLUMNS, _SGLANG, at_once=True, also=_WHOLE),
        Layout("aiperf", Shape.REQUEST, _AIPERF),  # after ``score.aiperf`` has flattened it
        *(Layout(tool.name, Shape.REQUEST, _TOOL) for tool in TOOLS),
    )
}


def parse_map(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``FIELD=NAME`` texts. Raises UsageError for another form or field.

    An optional field with an empty name is missing in the file. ``session`` is a synonym of
    ``program``.
    """
    names = {}
    for text in texts:
        given, equals, name = text.partition("=")
        field = "program" if given == ALIASES["program"] else given
        if not equals:
            raise UsageError(f"--map {text}: must be FIELD=NAME, such as client=user_id")
        if field not in FIELDS:
            raise unknown_name("field in --map", field, FIELDS)
        if not name and field not in OPTIONAL:
            allowed = ", ".join(OPTIONAL)
            raise UsageError(f"--map {text}: must name a column; only {allowed} may be empty")
        names[field] = name
    return names


def choose_layout(
    name: str | None, objects: Sequence[tuple[str, Object]], names: Mapping[str, str]
) -> Layout:
    """Return the layout with the name ``name``, or the first that fits.

    The first objects may belong to failed requests and lack fields of the others; the first object
    that fits a layout decides. Raises UsageError for an unknown name, DataError if none fits.
    """
    where, first = objects[0]
    if name is not None:
        if name not in LAYOUTS:
            raise unknown_name("layout", name, LAYOUTS)
        return (common(first) if name == PLAIN else LAYOUTS[name]).mapped(names)
    for _, item in objects[:LOOKED_AT]:
        if (found := _first_that_fits(item, names)) is not None:
            return found
    raise _in_none(first, where, names)


def _first_that_fits(item: Object, names: Mapping[str, str]) -> Layout | None:
    plain = common(item).mapped(names)
    if _plain(item).mapped(names).fits(item):  # tried first, since other layouts may fit by chance
        return plain
    own = (PLAIN, *(one.name for one in TOOLS))  # tools are recognised by other signs
    others = (one.mapped(names) for one in LAYOUTS.values() if one.name not in own)
    return next((layout for layout in (*others, plain) if layout.fits(item)), None)


def _in_none(item: Object, where: str, names: Mapping[str, str]) -> DataError:
    plain = common(item).mapped(names)
    missing = {
        field: name
        for field, name in plain.columns.items()
        if field not in OPTIONAL and name not in item
    }
    keys = ", ".join(printable(str(name)) for name in list(item)[:12])
    return DataError(
        f"{where}: the layout is unknown. The plain layout needs "
        f"{', '.join(missing.values())}, which the file lacks (it has {keys}). Name the "
        f"fields with --map FIELD=NAME.{_hint(missing, plain, item)}"
    )


def _hint(missing: Iterable[str], plain: Layout, item: Object) -> str:
    taken = plain.columns.values()
    found = ((field, nearest(ALIASES.get(field, field), item, taken)) for field in missing)
    near = next((f"{field}={name}" for field, name in found if name), "")
    return f" Did you mean {near}?" if near else ""


def _plain(item: Object) -> Layout:
    """Return the layout with fairbench's field names and the time fields that an object has."""
    ways = [next((field for field in group if field in item), group[0]) for group in (FIRST, LAST)]
    return LAYOUTS[PLAIN].mapped({way: way for way in ways})


def common(item: Object) -> Layout:
    """Return the plain layout, by common names if an object lacks fairbench's."""
    found = recognised(item, ALIASES.values())
    names = {field: found[alias].name for field, alias in ALIASES.items() if alias in found}
    sessions = "program" in names and "program" not in item
    names |= {field: field for field in FIELDS if field in item}
    if isinstance(item.get(names.get("itls", "")), list):
        names["gaps"] = names["itls"]
    else:  # the mean of a request's gaps has the same name
        names.pop("itls", None)
    for group in (FIRST, LAST):
        ways = [field for field in group if field in names]
        for other in ways[1:]:
            del names[other]
    return replace(LAYOUTS[PLAIN].mapped(names), sessions=sessions)


def responses_of(item: Object) -> list[Any]:
    """Return the requests listed under ``result.responses``."""
    rows = inner(item, "result", "responses")
    return rows if isinstance(rows, list) else []
