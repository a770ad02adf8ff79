"""Rows of a file with a column a field, by names that are common or that a user gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.errors.validation import shortened
from fairbench.files.column_names import Column, recognised, split_unit
from fairbench.files.json_text import INTEGERS, Place
from fairbench.files.times import Nanoseconds, is_calendar, is_number, nanoseconds, unit_of
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.missing import OWN, no_column, no_such_column
from fairbench.workloads.traces.rows import ALL, MAX_INPUT, MAX_NAME, MAX_OUTPUT, Row
from fairbench.workloads.traces.texts import BLOCK_TOKENS, blocks_of, text_of, tokens_of

NEEDED = ("time", "input_tokens", "output_tokens")
FIELDS = (
    *NEEDED,
    "client",
    "max_tokens",
    "session",
    "end",
    "latency",
    "hash_ids",
    "block_size",
    "text",
)

CALENDAR_NS = 10**17  # after 1970: March 1973; no trace is so long


class Columns:
    """Reads records of one file. ``usual`` are the columns of its format, ``unit`` of its times."""

    def __init__(
        self,
        asked: Asked,
        usual: Mapping[str, str] | None = None,
        *,
        unit: str | None = None,
        block_size: int = 0,
    ) -> None:
        self._notes = asked.notes
        self._names = given_columns(asked.names)
        self._usual = {field: Column(name, unit) for field, name in (usual or {}).items()}
        self._unit = unit
        self._guessed: str | None = None  # that unit, if only the size of a time says it
        self._dated: bool | None = None  # whether its times are of a calendar, or from some start
        self._block_size = block_size
        self._unseen = set(self._names)
        self._last: tuple[str, Record] | None = None
        self._known: dict[tuple[str, ...], dict[str, Column]] = {}

    def rows(self, records: Iterator[Place]) -> Iterator[PlacedRow]:
        """A row a record. One without a prompt or without an answer failed, and is left out."""
        for where, record in records:
            yield PlacedRow(where, self.row(record, where))
        self.check_named()

    def row(self, record: Record, where: str) -> Row | None:
        """Raises DataError naming the field."""
        columns = self._columns(record, where)
        cells = {field: _cell(record, column.name) for field, column in columns.items()}
        if self._unseen:
            self._last = where, record
            self._unseen = {name for name in self._unseen if cells[name] is None}
        text = _text(cells.get("text"), where)
        read = _tokens(cells.get("input_tokens"), columns.get("input_tokens"), where, MAX_INPUT)
        if text and _given(cells.get("input_tokens")) is None:
            read = tokens_of(text)
        written = _tokens(cells["output_tokens"], columns["output_tokens"], where, MAX_OUTPUT)
        if not read or not written:
            return None
        at_ns = self._time(cells["time"], columns["time"], where)
        blocks = _blocks(cells.get("hash_ids"), where)
        size = self._size(cells.get("block_size"), where) if blocks else 0
        estimated = 0
        if text and not blocks:
            blocks, size, estimated = blocks_of(text), BLOCK_TOKENS, tokens_of(text)
        return Row(
            at_ns,
            client_name(cells.get("client"), where),
            read,
            written,
            _tokens(cells.get("max_tokens"), columns.get("max_tokens"), where, MAX_OUTPUT),
            _name(cells.get("session"), "session", where),
            self._end(cells, columns, at_ns, where),
            blocks,
            size,
            _synthetic(record),
            estimated,
            _branch(record),
        )

    def check_named(self) -> None:
        """Once all are read: raise DataError for a column that a user named and that none has."""
        if self._last is None or not self._unseen:
            return
        where, record = self._last
        raise no_such_column(self._names[min(self._unseen)].name, record, where)

    def _columns(self, record: Record, where: str) -> dict[str, Column]:
        """The columns of a record's fields; records of one file may differ."""
        keys = tuple(record)
        if keys not in self._known:
            if len(self._known) > 100:
                self._known.clear()
            found = recognised(keys, FIELDS)
            usual = {field: one for field, one in self._usual.items() if one.name in record}
            self._known[keys] = found | usual | self._names
            self._check(self._known[keys], record, where)
        return self._known[keys]

    def _check(self, columns: Mapping[str, Column], record: Record, where: str) -> None:
        for field in NEEDED:
            if field not in columns and not (field == "input_tokens" and "text" in columns):
                taken = [column.name for column in columns.values()]
                raise no_column(field, taken, record, where)
        for field, column in self._names.items():
            if field in NEEDED and _cell(record, column.name) is None:
                raise no_such_column(column.name, record, where)

    def _time(self, value: Any, column: Column, where: str) -> int:
        known = column.unit or self._unit or isinstance(value, Nanoseconds)
        if not known and not is_calendar(value):
            self._guessed = self._unit = unit_of(value)
        if not self._notes:
            self._notes["unit"] = self._said(value, column)
        at_ns = _nanoseconds(value, self._unit_of(column), column, where)
        dated = abs(at_ns) >= CALENDAR_NS
        if self._dated is None:
            self._dated = dated
        elif self._dated is not dated:
            kinds = "a date, unlike the times" if dated else "no date, unlike those"
            raise DataError(f"{where}: {_shown(column, value)}: is {kinds} before it")
        return at_ns

    def _said(self, value: Any, column: Column) -> str:
        """The unit of its times and what says it, for people."""
        if is_calendar(value):
            return "ISO 8601"
        guessed = column.unit is None and self._guessed is not None
        unit = "ns" if isinstance(value, Nanoseconds) else self._unit_of(column)
        return f"{unit}, by their size" if guessed else unit

    def _unit_of(self, column: Column) -> str:
        return column.unit or self._unit or "s"

    def _end(
        self, cells: Mapping[str, Any], columns: Mapping[str, Column], at_ns: int, where: str
    ) -> int | None:
        """When the answer was complete, if the record says when, or how long it took."""
        for field in ("end", "latency"):
            value = _given(cells.get(field))
            if value is None:
                continue
            column = columns[field]
            unit = column.unit or self._unit_of(columns["time"])
            if field == "latency" and not column.unit and self._guessed not in (None, "s"):
                raise DataError(
                    f"{where}: {_shown(column, value)}: in what unit? Its times seem to be in "
                    f"{self._guessed}: say it with --map latency_{self._guessed}={column.name}"
                )
            end_ns = _nanoseconds(value, unit, column, where)
            end_ns += at_ns if field == "latency" else 0
            if end_ns < at_ns:
                raise DataError(f"{where}: {_shown(column, value)}: before its time")
            return end_ns
        return None

    def _size(self, value: Any, where: str) -> int:
        if _given(value) is None:
            if not self._block_size:
                raise DataError(f"{where}: hash_ids, but no block_size: how many tokens a block is")
            return self._block_size
        return _tokens(value, Column("block_size", None), where, MAX_INPUT) or 1


def parse_names(texts: list[str] | None) -> dict[str, str]:
    """``FIELD=COLUMN`` each, as of ``--map``. Raises UsageError for another shape or field."""
    names = {}
    for text in texts or ():
        field, equals, column = text.partition("=")
        if not (field and equals and column):
            raise UsageError(f"--map {text}: write FIELD=COLUMN, such as client=user_id")
        names[field] = column
    given_columns(names)
    return names


def given_columns(names: Mapping[str, str]) -> dict[str, Column]:
    """The columns that a user names. Raises UsageError for an unknown field."""
    found = {}
    for field, column in names.items():
        base, unit = (field, None) if field in FIELDS else split_unit(field)
        if base not in FIELDS or (unit and base not in ("time", "end", "latency")):
            raise unknown_name("field in --map", field, [*FIELDS, "time_ms", "latency_ms"])
        found[base] = Column(column, unit or split_unit(column)[1])
    return found


def client_name(value: Any, where: str) -> str:
    """A client's name, ``ALL`` for none."""
    return _name(value, "client", where) or ALL


def _shown(column: Column, value: Any) -> str:
    return f"{column.name.removeprefix(OWN)} = {shortened(repr(value))}"


def _cell(record: Record, name: str) -> Any:
    """What a record holds under a name, or with dots under names in each other."""
    if name in record or "." not in name:
        return record.get(name)
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _given(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _nanoseconds(value: Any, unit: str, column: Column, where: str) -> int:
    try:
        return nanoseconds(value, unit)
    except (ValueError, OverflowError):
        kind = f"a number (in {unit})" if is_number(value) else "a number"
        raise DataError(
            f"{where}: {_shown(column, value)}: must be {kind} or an ISO 8601 "
            "time, such as 2024-05-01T12:00:00Z, of the years 1824 to 2115"
        ) from None


def _tokens(value: Any, column: Column | None, where: str, most: int) -> int:
    """A number of tokens; none where nothing is said, as of a request that failed."""
    if column is None or _given(value) is None:
        return 0
    number = value
    if isinstance(value, str) and len(value) <= 20:
        try:
            number = float(value)
        except ValueError:
            number = None
    whole = isinstance(number, int | float) and not isinstance(number, bool)
    if not whole or not 0 <= number <= most or number % 1:
        raise DataError(
            f"{where}: {_shown(column, value)}: must be a whole number of tokens from 0 to {most:,}"
        )
    return int(number)


def _name(value: Any, field: str, where: str) -> str:
    """A name, "" for none; numbers are names too."""
    if value is None:
        return ""
    text = str(value).strip() if isinstance(value, str | int | float) else None
    if text is None or len(text) > MAX_NAME:
        raise DataError(f"{where}: {field} = {shortened(repr(value))}: must be a text or a number")
    return text


def _synthetic(record: Record) -> str:
    """What of it a trace of our own says that nobody recorded."""
    value = record.get("synthetic")
    return value if isinstance(value, str) and len(value) <= MAX_NAME else ""


def _branch(record: Record) -> int:
    """The sub-agent of the session that a trace of our own names, 0 for none."""
    value = record.get("branch")
    return value if type(value) is int and 0 <= value < 2**31 else 0


def _text(value: Any, where: str) -> str:
    """The text of a prompt, "" for none."""
    value = _given(value)
    if value in (None, "[]", "{}"):
        return ""
    if not isinstance(value, str | list):
        raise DataError(f"{where}: text = {shortened(repr(value))}: must be a text or messages")
    return text_of(value)


def _blocks(value: Any, where: str) -> list[int]:
    """Identities of blocks: a JSON list, or in CSV numbers with spaces between."""
    if _given(value) is None:
        return []
    try:
        found = (
            value if isinstance(value, list) else [int(one) for one in value.strip("[]").split()]
        )
        if all(type(one) is int and one in INTEGERS and one < 2**63 for one in found):
            return found
    except (AttributeError, ValueError):
        pass
    raise DataError(f"{where}: hash_ids = {shortened(repr(value))}: must be a list of integers")
