"""A reader that stores the requests of a file as columns of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairbench.errors import DataError, UsageError, printable, shortened
from fairbench.files.formats import FilePlace
from fairbench.files.reader import ReadMemory
from fairbench_logs.records import column_names as naming
from fairbench_logs.records.cells import is_missing, without_points
from fairbench_logs.records.known_formats import PLAIN, kinds_of, layout_of
from fairbench_logs.records.layout import Layout, Record, Run
from fairbench_logs.records.source import records_of, separator_of

Floats = npt.NDArray[np.float64]

BATCH = 16_384  # number of records that are Python objects at one time
# Estimates of memory assume 200 bytes for each row and 200 bytes for each distinct text.
ROW_BYTES, NAME_BYTES = 200, 200
SAMPLE = 50  # number of a column's values from which the meaning of the column is inferred
MAX_COLUMNS = 2_000
SHOWN_ROWS = 100  # limit on rows without an end time whose columns error messages can name
NUMERIC = frozenset({*naming.COUNTS, *naming.MOMENTS, *naming.LENGTHS})
WRAPPERS = ("data", "items", "result", "results", "observations", "runs", "logs", "records", "rows")
"""Keys under which a file with a single object, such as an API's answer, lists its records."""
CONTAINER = {"log", "stream", "time"}
"""The keys of a line that Docker writes to the log of a container."""


class ColumnValues(NamedTuple):
    """A column of a file that holds a field of the requests.

    ``values`` is an array of numbers, or a list of the values as in the file. ``name`` is the
    column's name in the file. ``unit`` is the unit of a column of times, or None if unknown.
    ``first`` is the column's first value that is not missing.
    """

    field: str
    name: str
    unit: str | None
    values: Sequence[Any] | Floats
    first: Any = None


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a file of records.

    Attributes:
        fields: The record fields that the reader extracts from the file.
        names: The columns that the user named, by field; an empty name means that the file lacks
            the field.
        layout: The name of the file's format (layout), or None to detect the format.
        calls: A mapping from the format names that the command accepts to the names of layouts.
        line: The number, from 1, of the run in a file with several runs; 0 for the only run.
        line_flag: The name of the flag that sets ``line``, for error messages.
        signs: The names of columns that state how a request ended, in the form that
            ``column_names.sign_name`` returns.
        convert: Functions, by field, that take a value and its location and convert the value.
    """

    fields: Collection[str]
    names: Mapping[str, naming.FieldColumn] = field(default_factory=dict)
    layout: str | None = None
    calls: Mapping[str, str] = field(default_factory=dict)
    line: int = 0
    line_flag: str = "--line"
    signs: Collection[str] = ()
    convert: Mapping[str, Callable[[Any, str], Any]] = field(default_factory=dict)


@dataclass
class FileColumns:
    """The columns of a file by field; row i of every column is request i.

    Attributes:
        file: The name of the file.
        layout: The format (layout) of the file.
        length: The number of requests in the file.
        fields: The columns that may hold each field, in order of preference.
        signs: The columns that state how requests ended, in the order of the file.
        places: The location of each request in the file: a line number, or a text for messages.
        samples: Some values of every column in the file.
        record: A record of the file, which error messages quote.
        first_where: The location of the first record in the file.
        odd: The columns of each record without a last-token time, keyed by the request's row
            number.
        unseen: The columns that the user named but that occur in no record.
        answered: The number of requests that a gateway answered from its cache.
        chosen: The columns that the user named, by field.
        completed: The number of successful requests that the file states, or None.
        remarks: Remarks about information that the file lacks.
        run: The record of the chosen run, if the file has one record per run.
        text: Whether the file states all values as text, as CSV does.
        semicolons: Whether semicolons separate the columns of a CSV file.
    """

    file: str
    layout: Layout
    length: int
    fields: dict[str, list[ColumnValues]]
    signs: list[ColumnValues]
    places: list[str | int]
    samples: dict[str, list[Any]]
    record: Record
    first_where: str
    odd: dict[int, tuple[str, ...]]
    unseen: tuple[str, ...]
    answered: int = 0
    chosen: Mapping[str, naming.FieldColumn] = field(default_factory=dict)
    completed: int | None = None
    remarks: tuple[str, ...] = ()
    run: Record = field(default_factory=dict)
    text: bool = False
    semicolons: bool = False

    def __len__(self) -> int:
        return self.length

    def where(self, row: int) -> str:
        """Return the location of a request, such as ``FILE, line 3``."""
        place = self.places[row]
        return f"{self.file}, line {place}" if isinstance(place, int) else place

    def problem(self, row: int, what: str) -> RecordError:
        """Return an error with the message ``what`` about the request in ``row`` (from 0)."""
        return RecordError(f"{self.where(row)}: {what}")

    def of_fields(self, *fields: str) -> list[ColumnValues]:
        """Return the columns of each field in ``fields``; a field's preferred column is first."""
        return [column for name in fields for column in self.fields.get(name, ())]

    def field_values(self, name: str) -> list[Any] | None:
        """Return each request's value of the field ``name``, or None if no request has the field.

        If a field's preferred column lacks a value, the next column of the field is used.
        """
        found: list[Any] | None = None
        for column in self.of_fields(name):
            values = listed(column.values)
            if found is None:
                found = values
                continue
            found = [b if is_missing(a) else a for a, b in zip(found, values, strict=True)]
        return None if found is None or all(map(is_missing, found)) else found

    def is_named(self, name: str) -> bool:
        """Return whether the user named the column of a field."""
        return name in self.chosen

    def chosen_name(self, name: str) -> str:
        """Return the column that the user named for a field; "" if the user named no column."""
        return self.chosen[name].name if name in self.chosen else ""

    @property
    def taken(self) -> list[str]:
        """The names of all columns that were recognised as fields."""
        return [column.name for one in self.fields.values() for column in one]

    def keep_rows(self, rows: npt.NDArray[np.bool_]) -> None:
        """Drop all requests except the given rows."""
        if rows.all():
            return
        chosen = np.flatnonzero(rows)
        index = chosen.tolist()
        for name, columns in self.fields.items():
            self.fields[name] = [_column_of_rows(one, chosen, index) for one in columns]
        self.signs = [_column_of_rows(one, chosen, index) for one in self.signs]
        self.places = [self.places[row] for row in index]
        number = {row: at for at, row in enumerate(index)}
        self.odd = {number[row]: keys for row, keys in self.odd.items() if row in number}
        self.length = len(index)


class RecordError(DataError):
    """An error for a record with an impossible value, raised once the columns are known."""


def _column_of_rows(
    column: ColumnValues, rows: npt.NDArray[np.int64], index: list[int]
) -> ColumnValues:
    values = column.values
    if isinstance(values, np.ndarray):
        return column._replace(values=values[rows])
    return column._replace(values=[values[row] for row in index])


def listed(values: Sequence[Any] | Floats) -> list[Any]:
    """Return the values as a list with None in place of NaN."""
    if isinstance(values, np.ndarray):
        return [None if one != one else one for one in values.tolist()]
    return list(values)


def read_columns(path: Path, asked: ReadOptions) -> FileColumns:
    """Return the requests of a file as columns of values.

    Raises DataError if the file is invalid, and UsageError if an option is invalid.
    """
    texts, head, every = beginning(path)
    layout = layout_of(asked.layout, kinds_of([one.value for one in head]), asked.calls)
    reader = _Reader(path, layout, asked, texts=texts)
    if layout.runs is not None:
        reader.add_run(list(every))
    elif asked.line:
        raise UsageError(
            f"{asked.line_flag} {asked.line}: cannot be given for this file, which holds a single "
            "run"
        )
    else:
        while batch := list(islice(every, BATCH)):
            reader.add_records(batch)
    return reader.columns(head[0])


class Beginning(NamedTuple):
    """The first records of a file, an iterator over all records, and whether the file is CSV."""

    texts: bool
    head: list[FilePlace]
    every: Iterator[FilePlace]


def beginning(path: Path) -> Beginning:
    """Return a file's records; JSON objects in CSV values are parsed."""
    records = iter(records_of(path, streamed=True, stripped=True))
    head = list(islice(records, BATCH))
    if len(head) == 1 and (inside := _records_inside(head[0])):
        return Beginning(False, inside, iter(inside))
    texts = all(isinstance(one, str) for one in head[0].value.values())
    rows = [one.value for one in head]
    samples = {name: _sample_values(rows, name)[:1] for name in rows[0]} if texts else {}
    names = tuple(
        name
        for name, values in samples.items()
        if values and not isinstance(naming.object_of(values[0]), str | None)
    )
    head = [_with_objects(one, names) for one in head]
    return Beginning(texts, head, chain(head, (_with_objects(one, names) for one in records)))


def _records_inside(place: FilePlace) -> list[FilePlace]:
    """Return the records of a file that is one object with a list of records, or else []."""
    if layout_of(None, [place.value]) is not PLAIN:
        return []
    found = next((place.value[name] for name in WRAPPERS if place.value.get(name)), None)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        return []
    return [FilePlace(f"{place.where}, record {n}", one) for n, one in enumerate(found, start=1)]


def _with_objects(place: FilePlace, names: tuple[str, ...]) -> FilePlace:
    if not names:
        return place
    record = {**place.value, **{n: naming.object_of(place.value[n]) for n in names}}
    if record.keys() == CONTAINER and isinstance(record["log"], dict):
        # Docker's time of a log line is ignored, because it is later than the request's time.
        record = record["log"]
    return FilePlace(place.where, record)


class _Reader:
    """A reader that receives the records of a file in batches."""

    def __init__(self, path: Path, layout: Layout, asked: ReadOptions, *, texts: bool) -> None:
        self._file, self._layout, self._asked = f"{path}", layout, asked
        self._memory = ReadMemory(self._file)
        self._spread = layout.spread() if layout.spread else None
        self._found: dict[tuple[str, str], _Values] = {}
        self._ranks: dict[tuple[str, str], int] = {}
        self._signs: dict[str, _Values] = {}
        self._known: dict[tuple[str, ...], dict[str, list[naming.FieldColumn]]] = {}
        self._samples: dict[str, list[Any]] = {}
        self._places: list[str | int] = []
        self._odd: dict[int, tuple[str, ...]] = {}
        self._unseen = {one.name for one in asked.names.values() if one.name}
        self._answered = 0
        self._record: Record = {}
        self._run = Run([])
        self._facts: Record = {}
        self._texts: set[Any] = set()
        self._text = texts
        self._semicolons = texts and separator_of(path) == ";"

    def add_run(self, places: list[FilePlace]) -> None:
        """Add the requests of the run that the user chose, or of the file's only run."""
        make = self._layout.runs
        assert make is not None
        runs = make([one.value for one in places], self._file)
        if not runs:
            raise DataError(f"{self._file}: {self._layout.nothing}")
        line = self._asked.line
        flag = self._asked.line_flag
        if not line and len(runs) > 1:
            raise UsageError(
                f"{self._file}: holds {len(runs)} runs: choose one with {flag} 1 to {len(runs)}"
            )
        if not 1 <= (line or 1) <= len(runs):
            raise UsageError(f"{flag} {line}: must be between 1 and {len(runs)}")
        at = (line or 1) - 1
        where = places[at].where if len(runs) == len(places) else self._file
        try:
            chosen = runs[at]
            run = chosen if isinstance(chosen, Run) else chosen()
        except DataError as error:
            text = f"{error}"
            raise DataError(f"{where}{text}" if text.startswith(": ") else text) from None
        self._run, self._facts = run, places[at].value if len(runs) == len(places) else {}
        rows, self._text = run.requests, False
        for begin in range(0, len(rows), BATCH):
            part = rows[begin : begin + BATCH]
            self._add(part, [f"{where}, request {begin + n}" for n in range(1, len(part) + 1)])

    def add_records(self, batch: list[FilePlace]) -> None:
        keep, begin = self._layout.keep, f"{self._file}, line "
        rows: list[Any] = []
        places: list[str | int] = []
        for where, record in batch:
            place: str | int = where
            if where.startswith(begin) and where[len(begin) :].isdigit():
                place = int(where[len(begin) :])
            if keep is not None and not keep(record):
                self._answered += 1
                continue
            if self._spread is None:
                rows.append(record)
                places.append(place)
                continue
            for number, one in enumerate(self._spread(record, where), start=1):
                rows.append(one)
                places.append(place if number == 1 else f"{where}, request {number}")
        self._add(rows, places)

    def _add(self, rows: Sequence[Record], places: list[str | int]) -> None:
        if not rows:
            return
        begin = len(self._places)
        self._record = self._record or rows[0]
        keys = tuple(islice(dict.fromkeys(chain.from_iterable(rows)), MAX_COLUMNS))
        chosen = self._chosen_columns(keys, rows)
        self._memory.take_bytes(ROW_BYTES * len(rows))
        for name, columns in chosen.items():
            for rank, column in enumerate(columns):
                values = self._column_values(rows, column.name)
                if column.name in self._unseen and any(one is not None for one in values):
                    self._unseen.discard(column.name)
                if name in self._asked.convert:
                    values = self._converted(name, values, places)
                key = name, column.name
                self._ranks.setdefault(key, rank)
                kept = self._found.setdefault(key, _Values(column.unit))
                kept.add(begin, self._packed(name, values), values)
        for name, found in self._signs.items():
            values = self._column_values(rows, name)
            found.add(begin, values, values)
        self._note_odd(rows, chosen, begin)
        self._places += places

    def _column_values(self, rows: Sequence[Record], name: str) -> list[Any]:
        if "." not in name:
            return [row.get(name) for row in rows]
        return [naming.cell_of(row, name) for row in rows]

    def _converted(self, name: str, values: list[Any], places: list[str | int]) -> list[Any]:
        convert, made = self._asked.convert[name], []
        for value, place in zip(values, places, strict=True):
            where = f"{self._file}, line {place}" if isinstance(place, int) else place
            made.append(convert(value, where))
            self._memory.take_bytes(getattr(made[-1], "nbytes", 0))
        return made

    def _packed(self, name: str, values: list[Any]) -> Sequence[Any] | Floats:
        """Return an array if all values are numbers, or else a list that stores each text once."""
        pointed = (
            self._text
            and (name in naming.COUNTS or (self._semicolons and name in naming.LENGTHS))
            and any(isinstance(one, str) and "." in one for one in values)
        )
        if not pointed and name in NUMERIC and (found := as_numbers(values)) is not None:
            self._memory.take_bytes(found.nbytes)
            return found
        new = set()
        if name in naming.LABELS or name in NUMERIC:
            new = {one for one in values if isinstance(one, str)} - self._texts
            self._texts |= new
        self._memory.take_bytes(8 * len(values) + sum(NAME_BYTES + 4 * len(one) for one in new))
        return values

    def _note_odd(
        self, rows: Sequence[Record], chosen: Mapping[str, list[naming.FieldColumn]], begin: int
    ) -> None:
        ends = [column.name for name in naming.LAST for column in chosen.get(name, ())]
        if not ends or any("." in one for one in ends):
            return
        if all(ends[0] in row for row in rows):
            return
        for number, row in enumerate(rows):
            if len(self._odd) < SHOWN_ROWS and not any(one in row for one in ends):
                self._odd[begin + number] = tuple(row)

    def _chosen_columns(
        self, keys: tuple[str, ...], rows: Sequence[Record]
    ) -> dict[str, list[naming.FieldColumn]]:
        if keys in self._known:
            return self._known[keys]
        samples = {name: _sample_values(rows, name) for name in keys}
        nested = self._nested_samples(samples, rows)
        for name, values in chain(samples.items(), nested.items()):
            self._samples.setdefault(name, values)
            if naming.sign_name(name) in self._asked.signs:
                self._signs.setdefault(name, _Values(None))
        fields = {
            name: self._columns_of(name, samples, nested, rows)
            for name in dict.fromkeys((*self._asked.fields, *self._asked.names))
        }
        self._known[keys] = {name: columns for name, columns in fields.items() if columns}
        return self._known[keys]

    def _nested_samples(
        self, samples: Mapping[str, list[Any]], rows: Sequence[Record]
    ) -> dict[str, list[Any]]:
        """Return samples of the columns in nested objects, by the columns' dotted names."""
        inside: dict[str, None] = {}
        for name, values in samples.items():
            if any(isinstance(one, Mapping) for one in values):
                for row in rows:
                    value = row.get(name)
                    if isinstance(value, Mapping) and value:
                        inside |= dict.fromkeys(naming.leaves(value, f"{name}."))
                        if len(inside) > MAX_COLUMNS:
                            break
            elif "." in name:
                inside[name] = None
        return {name: _sample_values(rows, name) for name in islice(inside, MAX_COLUMNS)}

    def _columns_of(
        self,
        name: str,
        samples: Mapping[str, list[Any]],
        nested: Mapping[str, list[Any]],
        rows: Sequence[Record],
    ) -> list[naming.FieldColumn]:
        """Return a field's columns, which the user, the format or the usual names determine."""
        named, layout = self._asked.names, self._layout
        if name in named:
            return [named[name]] if named[name].name else []
        for group in (naming.FIRST, naming.LAST):
            if name in group and not named.keys().isdisjoint(group):
                return []
        if name in layout.fields:
            listed_names = layout.fields[name]
            listed_names = (listed_names,) if isinstance(listed_names, str) else listed_names
            found = [
                naming.FieldColumn(one, self._unit_of_column(name, one))
                for one in listed_names
                if one and (one in samples or nested.get(one) or _sample_values(rows, one))
            ]
            if found or layout.exact or listed_names == ("",):
                return found
        elif layout.exact:
            return []
        found = naming.recognised(name, samples, samples)
        if name not in naming.FLAT and name in naming.NAMES:
            if not any(samples[one.name] for one in found):
                found = _only_nested_column(name, nested) or found
            elif any(row.keys().isdisjoint(one.name for one in found) for row in rows):
                # A record without the columns ``found`` may contain the field ``name`` in a nested
                # object.
                found = [*found, *_only_nested_column(name, nested)]
        return [one._replace(unit=self._unit_of_column(name, one.name, one.unit)) for one in found]

    def _unit_of_column(self, name: str, column: str, own: str | None = None) -> str | None:
        if name in naming.MOMENTS or name in naming.LENGTHS or name in ("itls", "gaps"):
            return own or naming.split_unit(column)[1] or self._layout.units.get(name)
        return None

    def columns(self, first: FilePlace) -> FileColumns:
        length = len(self._places)
        if not length:
            raise DataError(f"{self._file}: {self._layout.nothing}")
        fields: dict[str, list[ColumnValues]] = {}
        for (name, column), values in sorted(
            self._found.items(), key=lambda one: self._ranks[one[0]]
        ):
            joined = values.joined(length)
            if self._text and name in naming.COUNTS and not isinstance(joined, np.ndarray):
                joined = without_points(list(joined))
            made = ColumnValues(name, column, values.unit, joined, values.first)
            fields.setdefault(name, []).append(made)
        if not {"start"} & {*self._asked.names, *self._layout.fields} and "start" in fields:
            fields["start"].sort(key=lambda one: naming.starts_run(one.name, listed(one.values)))
        signs = [
            ColumnValues("sign", name, None, values.joined(length), values.first)
            for name, values in self._signs.items()
        ]
        return FileColumns(
            *(self._file, self._layout, length, fields, signs, self._places, self._samples),
            *(self._record, first.where, self._odd, tuple(sorted(self._unseen)), self._answered),
            self._asked.names,
            *(self._run.completed, self._run.remarks, self._facts, self._text),
            semicolons=self._semicolons,
        )


class _Values:
    """The values of a column, collected batch by batch; a batch without the column adds None."""

    def __init__(self, unit: str | None) -> None:
        self.unit = unit
        self.first: Any = None
        self._parts: list[tuple[int, Sequence[Any] | Floats]] = []

    def add(self, begin: int, part: Sequence[Any] | Floats, values: list[Any]) -> None:
        if self.first is None:
            self.first = next((one for one in values if not is_missing(one)), None)
        self._parts.append((begin, part))

    def joined(self, length: int) -> Sequence[Any] | Floats:
        if all(isinstance(part, np.ndarray) for _, part in self._parts):
            array = np.full(length, np.nan)
            for begin, part in self._parts:
                array[begin : begin + len(part)] = part
            return array
        values: list[Any] = [None] * length
        for begin, part in self._parts:
            values[begin : begin + len(part)] = listed(part)
        return values


def _sample_values(rows: Sequence[Record], name: str) -> list[Any]:
    values = (row.get(name) if name in row else naming.cell_of(row, name) for row in rows)
    return list(islice((one for one in values if not is_missing(one)), SAMPLE))


def _only_nested_column(name: str, nested: Mapping[str, list[Any]]) -> list[naming.FieldColumn]:
    """Return a list with the nested column for the field ``name``, or [] if no column fits.

    A column name that occurs in several nested objects is ignored. Objects such as users and models
    have a column ``id``, too, so ``id`` alone names no request.
    """
    nested = {one: values for one, values in nested.items() if not naming.means_other(name, one)}
    ends: dict[str, str] = {}
    # A name such as ``user.id`` is recognised in any nested object of a record.
    for parts in (2, 1):
        tails = [".".join(one.split(".")[-parts:]) for one in nested]
        count = Counter(tails)
        ends |= {tail: one for tail, one in zip(tails, nested, strict=True) if count[tail] == 1}
    if name == "request_id":
        ends = {tail: one for tail, one in ends.items() if naming.plain(tail) != "id"}
    found = naming.recognised(name, ends, {end: nested[one] for end, one in ends.items()})
    right = [one for one in found if any(naming.can_hold(name, v) for v in nested[ends[one.name]])]
    if name == "start":
        right.sort(key=lambda one: naming.starts_run(one.name, nested[ends[one.name]]))
    return [naming.FieldColumn(ends[one.name], one.unit) for one in right[:1]]


def as_numbers(values: list[Any]) -> Floats | None:
    """Return values as an array of numbers, or None if a value is not a number."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float, type(None)}:
            found = np.array(values, np.float64)
        elif kinds == {str} and len(max(values, key=len)) <= 40 and "_" not in "".join(values):
            found = np.array([float(one) if one else np.nan for one in values])
        else:
            return None
    except (ValueError, OverflowError):
        return None
    exact = not (int in kinds or str in kinds) or not (np.abs(found) > 2**53).any()
    return found if exact else None


def shown(name: str, value: Any) -> str:
    """Return a value as error messages show it: ``NAME = VALUE``."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and abs(value) < 2**53 and value.is_integer():
        value = int(value)
    numeric = isinstance(value, str) and value.isascii() and value.lstrip("-")[:1].isdigit()
    text = str(value) if numeric else None
    return f"{printable(name.removeprefix(naming.OWN))} = {shortened(text or repr(value))}"
