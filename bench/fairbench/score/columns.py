"""The records of one run as columns of values, as in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple, TypeVar

from fairbench.errors import DataError, UsageError, printable
from fairbench.files.column_names import NAMES, plain
from fairbench.files.times import is_blank, is_missing, number_of, zone_of
from fairbench.score.files import Object
from fairbench.score.layout import LAST, OPTIONAL, PLAIN, TIMES, Layout, Shape, common, responses_of
from fairbench.score.states import signed

Run = TypeVar("Run")

MAX_KINDS = 100
"""The number of different key sets of a file's objects up to which all are examined."""


class Column(NamedTuple):
    """The values of a field.

    ``name`` is the field's name in the file, ``unit`` the unit of its times.
    """

    field: str
    name: str
    unit: str | None
    values: list[Any]


@dataclass
class Columns:
    """A column for each field of a file; None for a record without a value.

    ``others`` are columns with times of records that store them differently from the first record.
    ``completed`` is the number of successful requests that the file itself states, or None.
    """

    layout: Layout
    columns: dict[str, Column]
    others: list[Column] = field(default_factory=list)
    completed: int | None = None

    def __len__(self) -> int:
        return len(self.columns["input_tokens"].values)

    def values(self, name: str) -> list[Any] | None:
        """Return the values of a field, None if no record has one."""
        found = self.columns.get(name)
        if found is None or all(map(is_missing, found.values)):
            return None
        return found.values

    @property
    def zone(self) -> str:
        """The UTC offset of the first start."""
        starts = (one for column in self.times(("start",)) for one in column.values)
        return zone_of(next((one for one in starts if not is_missing(one)), 0))

    def times(self, fields: Sequence[str]) -> Iterator[Column]:
        """Yield the columns of times of these fields, first that of the first record."""
        yield from (self.columns[one] for one in fields if one in self.columns)
        yield from (column for column in self.others if column.field in fields)


def columns_of(
    layout: Layout,
    objects: list[tuple[str, Object]],
    line: int | None,
    names: Mapping[str, str] | None = None,
) -> Columns:
    """Return the records of one run as columns. Raises DataError for another layout.

    ``names`` are the columns that the user chose for fields.
    """
    if layout.shape is Shape.REQUEST:
        if line is not None:
            raise UsageError(
                f"--line {line}: cannot be given for this file, in which each line is a "
                "request, not a run"
            )
        where, rows = objects[0][0], [item for _, item in objects]
        return _transposed(layout, rows, where, names or {})
    where, item = one_of_several(objects, line, objects[0][0].rpartition(",")[0])
    if layout.shape is Shape.RESPONSES:
        return _transposed(layout, responses_of(item), where, {})
    columns = {f: n for f, n in layout.also.items() if isinstance(item.get(n), list)}
    layout = replace(layout, columns={**layout.columns, **columns})
    return _checked(
        layout, {f: item[n] for f, n in layout.columns.items() if n in item}, item, where
    )


def one_of_several(runs: Sequence[Run], line: int | None, where: str) -> Run:
    """Return the only run, or the run that ``line`` chooses.

    Raises UsageError if the choice is missing, or if there is no such run.
    """
    if line is None and len(runs) > 1:
        raise UsageError(
            f"{where}: holds {len(runs)} runs: choose one with --line 1 to {len(runs)}"
        )
    number = line or 1
    if not 1 <= number <= len(runs):
        raise UsageError(f"--line {number}: must be between 1 and {len(runs)}")
    return runs[number - 1]


def _transposed(layout: Layout, rows: list[Any], where: str, names: Mapping[str, str]) -> Columns:
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{where}: every request must be a JSON object")
    used = {f: n for f, n in layout.columns.items() if any(n in row for row in rows)}
    made = _checked(layout, {f: [row.get(n) for row in rows] for f, n in used.items()}, {}, where)
    if layout.name == PLAIN:
        _add_others(made, rows, names)
        if not {"status", "error"} & names.keys():
            _add_signs(made, rows)
        _fill_clients(made, rows)
        _check_ends(made, rows, where)
    return made


def _check_ends(made: Columns, rows: list[Object], where: str) -> None:
    """Raise DataError for a successful request without a recognised end.

    Such a record has output and no sign of a failure, but no field for its end, not even an empty
    one.
    """
    ends = [column.name for column in made.times(LAST)]
    signs = [made.columns[name].name for name in ("error", "status") if name in made.columns]
    output = made.columns["output_tokens"].values
    for number, row in enumerate(rows):
        if any(key in row for key in ends) or not number_of(output[number]):
            continue
        if all(is_missing(row.get(key)) for key in signs):
            used = {column.name for column in (*made.columns.values(), *made.others)}
            others = ", ".join(printable(str(key)) for key in row if key not in used)
            raise DataError(
                f"{where.rpartition(',')[0] or where}: request {number + 1}: has no "
                f"{' or '.join(ends)}, unlike other requests (it has "
                f"{others or 'no other field'}). Name the field with --map FIELD=NAME; a "
                "failed request must have an error, a status or no output tokens"
            )


def _fill_clients(made: Columns, rows: list[Object]) -> None:
    """Fill empty client names from another column, such as an end user's."""
    found = made.columns.get("client")
    if found is None or not any(map(is_blank, found.values)):
        return
    common_names = NAMES["client"]
    keys = sorted(
        (key for key in rows[0] if plain(key) in common_names),
        key=lambda key: common_names.index(plain(key)),
    )
    for row, value in enumerate(found.values):
        if is_blank(value):
            others = (rows[row].get(key) for key in keys)
            found.values[row] = next((one for one in others if not is_blank(one)), None)


def _add_others(made: Columns, rows: list[Object], names: Mapping[str, str]) -> None:
    """Add fields that some records store under names that differ from the first record's."""
    kinds = {tuple(row): row for row in rows[:: max(1, len(rows) // 10_000)]}
    kinds |= {tuple(row): row for row in rows} if len(kinds) < MAX_KINDS else {}
    seen = set(made.layout.columns.items())
    for row in list(kinds.values())[:MAX_KINDS]:
        other = common(row).mapped(names)
        for name, key in other.columns.items():
            if (name, key) in seen or key not in row:
                continue
            seen.add((name, key))
            values = [row.get(key) for row in rows]
            if name in TIMES:
                made.others.append(Column(name, key, other.units.get(name), values))
            elif name in made.columns:
                mine = made.columns[name].values
                mine[:] = [b if a is None else a for a, b in zip(mine, values, strict=True)]
            else:
                made.columns[name] = Column(name, key, None, values)


def _add_signs(made: Columns, rows: list[Object]) -> None:
    """Fill missing statuses from columns of other names, such as ``success``."""
    if (signs := signed(rows)) is None:
        return
    if "status" in made.columns:
        said = made.columns["status"].values
        said[:] = [b if is_missing(a) else a for a, b in zip(said, signs, strict=True)]
    else:
        made.columns["status"] = Column("status", "status", None, signs)


def _checked(layout: Layout, values: dict[str, Any], run: Object, where: str) -> Columns:
    """Return the columns after a check that they are complete and equally long."""
    for name, key in layout.columns.items():
        if name not in OPTIONAL and name not in values:
            raise DataError(f"{where}: missing {key!r} ({name})")
    first = values["input_tokens"]
    length = len(first) if isinstance(first, list) else 0
    for name, column in values.items():
        if not isinstance(column, list) or len(column) != length:
            key = layout.columns[name]
            raise DataError(f"{where}: {key!r} ({name}) must be a list as long as the other lists")
    if not length:
        raise DataError(f"{where}: holds no records")
    if layout.at_once:
        if number_of(run.get("request_rate")) != inf or run.get("max_concurrency") is not None:
            raise DataError(
                f"{where}: has no start times (sglang.bench_serving does not record them). "
                "Without them, only a run at request_rate inf without max_concurrency can be "
                "scored; name a column of start times with --map start=NAME"
            )
        values["start"] = [0.0] * length
    if layout.uncached:
        values["cached_tokens"] = [0] * length
    units, names = layout.units, layout.columns
    columns = {
        name: Column(name, names.get(name, name), units.get(name), column)
        for name, column in values.items()
    }
    completed = run.get("completed")
    return Columns(layout, columns, completed=completed if type(completed) is int else None)
