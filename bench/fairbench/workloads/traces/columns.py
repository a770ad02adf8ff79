"""Rows of a tabular file, whose columns have common names or names that the user chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.column_names import Column, recognised, split_unit
from fairbench.files.json_text import Place
from fairbench.files.times import Nanoseconds, is_calendar, number_of, unit_of, zone_of
from fairbench.workloads.traces.cells import (
    block_ids,
    cell_of,
    check_fit,
    given,
    name_of,
    no_client,
    no_column,
    no_such_column,
    prompt_text,
    shown,
    synthetic_of,
    time_ns,
    token_count,
)
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.rows import ALL, FIELDS, MAX_INPUT, MAX_OUTPUT, NEEDED, Row
from fairbench.workloads.traces.texts import BLOCK_TOKENS, blocks_of, tokens_of

CACHED = "cached_tokens"  # a field that is not replayed
# nanoseconds since 1970 (March 1973) from which on times are dates, because no trace is so long
CALENDAR_NS = 10**17


class Columns:
    """A reader of a file's records: ``usual`` columns of its format, ``unit`` of its times."""

    def __init__(
        self,
        asked: Asked,
        usual: Mapping[str, str] | None = None,
        *,
        unit: str | None = None,
        block_size: int = 0,
    ) -> None:
        self._notes = asked.notes
        named = given_columns(asked.names)
        self._names = {field: column for field, column in named.items() if column.name}
        self._absent = named.keys() - self._names.keys()
        self._usual = {field: Column(name, unit) for field, name in (usual or {}).items()}
        self._unit = unit
        self._guessed: str | None = None  # the unit, if only the size of a time shows it
        self._dated: bool | None = None  # whether its times are dates, or relative to a start
        self._block_size = block_size
        self._asked_size = asked.block_size
        self._unseen = set(self._names)
        self._last: tuple[str, Record] | None = None
        # the time at which the last step of each session ended
        self._steps: dict[tuple[str, str], int] = {}
        self._untimed: tuple[str, Record] | None = None  # a record without a time
        self._delayed = False  # whether any record states its delay after the previous step
        self._known: dict[tuple[str, ...], dict[str, Column]] = {}

    def rows(self, records: Iterator[Place]) -> Iterator[PlacedRow]:
        """Yield a row per record. Failed records, without prompt or answer, are left out."""
        for where, record in records:
            yield PlacedRow(where, self.row(record, where))
        self.check_named()

    def row(self, record: Record, where: str) -> Row | None:
        """Return the row of a record. Raises DataError naming the field."""
        columns = self._columns(record, where)
        cells = {field: cell_of(record, column.name) for field, column in columns.items()}
        if self._unseen:
            self._last = where, record
            self._unseen = {name for name in self._unseen if cells[name] is None}
        text = prompt_text(cells.get("text"), where)
        read = token_count(cells.get("input_tokens"), columns.get("input_tokens"), where, MAX_INPUT)
        if text and given(cells.get("input_tokens")) is None:
            read = tokens_of(text)
        written = token_count(cells["output_tokens"], columns["output_tokens"], where, MAX_OUTPUT)
        if not read or not written:
            if "time" in columns and given(cells["time"]) is not None:
                time_ns(cells["time"], "s", columns["time"], where)  # a failed request has a time
            return None
        client = client_name(cells.get("client"), where)
        session = name_of(cells.get("session"), "session", where)
        think_ns = self._think(cells.get("delay"), columns.get("delay"), where)
        if session and given(cells.get("time")) is None:
            at_ns = self._after((client, session), think_ns, where)
        elif "time" in columns:
            at_ns = self._time(cells["time"], columns["time"], where)
        else:
            raise no_column("time", (column.name for column in columns.values()), record, where)
        end_ns = self._end(cells, columns, at_ns, where)
        if session:
            self._steps[client, session] = at_ns if end_ns is None else end_ns
        blocks = block_ids(cells.get("hash_ids"), where)
        size = self._size(cells.get("block_size"), where) if blocks else 0
        if blocks:
            check_fit(len(blocks), size, read, where)
        estimated = 0
        if not text and not blocks and (number_of(cells.get(CACHED)) or 0) > 0:
            self._notes["cached"] = columns[CACHED].name
        if text and not blocks:
            blocks, size, estimated = blocks_of(text), BLOCK_TOKENS, tokens_of(text)
        return Row(
            at_ns,
            client,
            read,
            written,
            token_count(cells.get("max_tokens"), columns.get("max_tokens"), where, MAX_OUTPUT),
            session,
            end_ns,
            blocks,
            size,
            synthetic_of(record),
            estimated,
            think_ns,
            _branch(record),
        )

    def check_named(self) -> None:
        """Raise DataError for a column that a user named and that no record has.

        This method is called after all records were read. The column of times is such a column,
        too, unless steps give their delays.
        """
        if self._untimed is not None and not self._delayed:
            where, record = self._untimed
            raise no_column("time", (), record, where)
        if self._last is None or not self._unseen:
            return
        where, record = self._last
        file = where.rpartition(", line")[0] or where  # no single record is at fault
        raise no_such_column(self._names[min(self._unseen)].name, record, file)

    def _columns(self, record: Record, where: str) -> dict[str, Column]:
        """Return the columns of a record's fields; the records of a file may differ."""
        keys = tuple(record)
        if keys not in self._known:
            if len(self._known) > 100:
                self._known.clear()
            found = recognised(keys, (*FIELDS, CACHED))
            usual = {field: one for field, one in self._usual.items() if one.name in record}
            columns = found | usual | self._names
            self._known[keys] = {
                field: column for field, column in columns.items() if field not in self._absent
            }
            self._check(self._known[keys], record, where)
        return self._known[keys]

    def _check(self, columns: Mapping[str, Column], record: Record, where: str) -> None:
        instead = {"input_tokens": "text", "time": "session"}
        if "time" not in columns and "session" in columns:
            self._untimed = self._untimed or (where, record)
        for field in NEEDED:
            if field not in columns and instead.get(field) not in columns:
                taken = [column.name for column in columns.values()]
                raise no_column(field, taken, record, where)
        if "client" in columns:
            self._notes["nameless"] = ""
        elif "nameless" not in self._notes:
            taken = [column.name for column in columns.values()]
            self._notes["nameless"] = no_client(taken, record)
        for field, column in self._names.items():
            if field in NEEDED and cell_of(record, column.name) is None:
                raise no_such_column(column.name, record, where)

    def _time(self, value: Any, column: Column, where: str) -> int:
        known = column.unit or self._unit or isinstance(value, Nanoseconds)
        if not known and not is_calendar(value):
            self._guessed = self._unit = unit_of(value)
        if "unit" not in self._notes:
            self._notes["unit"] = self._said(value, column)
        at_ns = time_ns(value, self._unit_of(column), column, where)
        dated = abs(at_ns) >= CALENDAR_NS
        if self._dated is None:
            self._dated, self._notes["zone"] = dated, zone_of(value)
        elif self._dated is not dated:
            kinds = ("dates", "seconds") if dated else ("seconds", "dates")
            raise DataError(
                f"{where}: {shown(column, value)}: times must be all {kinds[0]} or all {kinds[1]}; "
                f"the records before this one have {kinds[1]}"
            )
        return at_ns

    def _think(self, value: Any, column: Column | None, where: str) -> int | None:
        """Return the delay after the previous answer (ns), by default from milliseconds."""
        if column is None or given(value) is None:
            return None
        self._delayed = True
        think_ns = time_ns(value, column.unit or self._unit or "ms", column, where)
        if think_ns < 0:
            raise DataError(f"{where}: {shown(column, value)}: must be at least 0")
        return think_ns

    def _after(self, step: tuple[str, str], think_ns: int | None, where: str) -> int:
        """Return the time of a step without a time: the start for a session's first step."""
        before_ns = self._steps.get(step)
        if before_ns is None:
            return think_ns or 0
        if think_ns is None:
            raise DataError(f"{where}: must have a time, or a delay after the previous step")
        return before_ns + think_ns

    def _said(self, value: Any, column: Column) -> str:
        """Return the unit of the file's times and its source, for people."""
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
        """Return when the answer was complete (ns), if the record has an end or a duration."""
        for field in ("end", "latency"):
            value = given(cells.get(field))
            if value is None:
                continue
            column = columns[field]
            unit = column.unit or self._unit_of(columns["time"])
            if field == "latency" and not column.unit and self._guessed not in (None, "s"):
                raise DataError(
                    f"{where}: {shown(column, value)}: the unit is unknown, s or "
                    f"{self._guessed} like its dates; give it with --map "
                    f"latency_s={column.name} or latency_{self._guessed}={column.name}"
                )
            end_ns = time_ns(value, unit, column, where)
            end_ns += at_ns if field == "latency" else 0
            if end_ns < at_ns:
                raise DataError(
                    f"{where}: {shown(column, value)}: must not be before the arrival of the "
                    "request"
                )
            return end_ns
        return None

    def _size(self, value: Any, where: str) -> int:
        """Return the number of tokens of a block."""
        if self._asked_size:
            return self._asked_size
        if given(value) is None:
            if not self._block_size:
                raise DataError(
                    f"{where}: hash_ids needs block_size: give the number of tokens of a "
                    "block with --trace-block-size"
                )
            return self._block_size
        return token_count(value, Column("block_size", None), where, MAX_INPUT) or 1


def parse_names(texts: list[str] | None) -> dict[str, str]:
    """Parse the ``FIELD=COLUMN`` texts of ``--map``. Raises UsageError for another form.

    An empty column means that the file has no such field, so a column with a common name is not
    used.
    """
    names = {}
    for text in texts or ():
        field, equals, column = text.partition("=")
        if not (field and equals):
            raise UsageError(f"--map {text}: write FIELD=COLUMN, such as client=user_id")
        if not column and split_unit(field)[0] in NEEDED:
            raise UsageError(f"--map {text}: name a column, since every trace needs {field}")
        names[field] = column
    given_columns(names)
    return names


def given_columns(names: Mapping[str, str]) -> dict[str, Column]:
    """Return the columns that a user names. Raises UsageError for an unknown field."""
    found = {}
    for field, column in names.items():
        base, unit = (field, None) if field in FIELDS else split_unit(field)
        if base not in FIELDS or (unit and base not in ("time", "end", "latency", "delay")):
            raise unknown_name("field in --map", field, [*FIELDS, "time_ms", "latency_ms"])
        found[base] = Column(column, unit or split_unit(column)[1])
    return found


def client_name(value: Any, where: str) -> str:
    """Return a client's name, or ``ALL`` for none."""
    return name_of(value, "client", where) or ALL


def _branch(record: Record) -> int:
    """Return the number of the session's sub-agent in a fairbench trace, or 0."""
    value = record.get("branch")
    return value if type(value) is int and 0 <= value < 2**31 else 0
