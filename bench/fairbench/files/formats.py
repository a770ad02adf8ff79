"""Readers of JSON, CSV, Parquet and TOML whose errors name the line, and a writer of TOML."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.errors import MAX_DEPTH, TOO_DEEP, DataError, is_too_deep, shortened, unknown_name
from fairbench.files.reader import (
    LARGEST_PART,
    MIB,
    ReadMemory,
    TextLine,
    decoded,
    limit_bytes,
    lines,
    opened,
    read_whole,
)

if TYPE_CHECKING:
    import pyarrow as pa


INTEGERS = range(-(2**63), 2**64)
_LONG_NUMBER = re.compile(r"[0-9]{19}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class FilePlace(NamedTuple):
    """A value in a file, with its location for error messages."""

    where: str
    value: Any


def json_lines(file: Traversable, shown: str) -> Iterator[FilePlace]:
    """Yield the value and the location of each line of a JSON-lines file.

    Raises DataError, which names the number of a line that is not JSON.
    """
    for number, data in lines(file, shown):
        where = f"{shown}, line {number}"
        yield FilePlace(where, parsed(data, where))


def json_objects(file: Traversable, shown: str, *, streamed: bool = False) -> Iterator[FilePlace]:
    """Yield the JSON objects of a file: one object per line, or objects over several lines.

    If ``streamed`` is True, the number of lines is unlimited, and the caller must not keep the
    content. Raises DataError, whose message names the line, if a line is not a JSON object.
    """
    found = lines(file, shown, streamed=streamed)
    first = None
    for number, data in found:
        first = first or number
        where = f"{shown}, line {number}"
        try:
            yield _object_at(where, data)
        except DataError:
            if number > first or not (
                wholes := _whole_objects(TextLine(number, data), found, shown)
            ):
                raise
            yield from wholes


def _whole_objects(first: TextLine, rest: Iterator[TextLine], shown: str) -> list[FilePlace]:
    """Return the JSON objects of a file in which an object spans several lines.

    Several objects are accepted only if each object ends on a line that contains only a closing
    brace. If the file contains anything other than JSON objects, the result is [].
    """
    if not first.data.lstrip().startswith(b"{"):
        return []
    memory = ReadMemory(shown)
    size, parts, open_part = 0, [], (first.number, bytearray())
    for line in chain([first], rest):
        open_part = open_part if open_part[1] else (line.number, bytearray())
        open_part[1].extend(line.data)
        size += len(line.data)
        if size > memory.largest_line:
            raise memory.too_large()
        if line.data.rstrip() == b"}":
            parts.append(open_part)
            open_part = (0, bytearray())
    parts += [open_part] if open_part[1] else []
    try:
        return [_object_at(shown, b"".join(part for _, part in parts))]
    except DataError:
        pass
    try:
        return [_object_at(f"{shown}, line {number}", bytes(part)) for number, part in parts]
    except DataError:
        return []


def _object_at(where: str, data: bytes) -> FilePlace:
    content = parsed(data, where)
    if not isinstance(content, dict):
        raise DataError(f"{where}: must be a JSON object")
    return FilePlace(where, content)


def json_file(file: Traversable, shown: str, *, strict: bool = False) -> Any:
    """Return the single JSON value that a file contains.

    If ``strict`` is True, NaN, infinities and numbers too large for a float are refused. Raises
    DataError, whose message contains the line of the mistake.
    """
    return parsed(read_whole(file, shown), shown, several_lines=True, strict=strict)


def parsed(data: bytes, where: str, *, several_lines: bool = False, strict: bool = False) -> Any:
    """Parse a JSON text and return its value.

    Raises DataError for a text that is invalid or not portable. Deep nesting, integers of more than
    64 bits and lone surrogates are not portable.

    Args:
        data: Encoded text.
        where: Location of the text, which error messages name.
        several_lines: Whether error messages state the number of the wrong line.
        strict: Whether numbers that are not finite are refused.
    """
    text = decoded(data, where)
    options: dict[str, Any] = {}
    if strict:
        options = {"parse_constant": _refuse_constant, "parse_float": _finite_float}
    if _LONG_NUMBER.search(text):
        options["parse_int"] = _parsed_integer
    try:
        value = json.loads(text, **options)
        if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(value):
            raise RecursionError
        if "\\u" in text and _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if several_lines else ""
        raise DataError(f"{where}{line}: not JSON: {error.msg}") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    except MemoryError:
        raise DataError(f"{where}: not enough memory to read it") from None
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: cannot be read: a text contains an incomplete character (a lone surrogate)"
        ) from None
    except ValueError as error:
        raise DataError(f"{where}: cannot be read: {error}") from None
    return value


def _parsed_integer(text: str) -> int:
    if len(text) > 20 or (value := int(text)) not in INTEGERS:
        raise ValueError(f"an integer of {len(text.lstrip('-'))} digits does not fit into 64 bits")
    return value


def _finite_float(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} does not fit into 64 bits")
    return value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not allowed in JSON")


def inner(value: Any, *keys: str) -> Any:
    """Return the value at a path of nested keys, or None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


MAX_CELLS = 100_000  # maximum number of cells in a line with a separator other than a comma
_SEPARATOR_LINE = re.compile(r'"?sep=.?"?\s*', re.IGNORECASE)
"""The line, such as ``sep=;``, in which some spreadsheet programs state the separator."""
_QUOTED = re.compile(r'"[^"]*"')


class CsvRow(NamedTuple):
    """The values of a CSV row by column, and the number of the line at which the row ends."""

    number: int
    cells: dict[str, str]


def csv_reader(file: Traversable, shown: str, *, streamed: bool = False) -> csv.DictReader[str]:
    """Return a reader of CSV rows, which raises ``csv.Error`` or DataError.

    If ``streamed`` is True, the size of the file is not limited.
    """
    # A single cell may be as long as the longest allowed line.
    csv.field_size_limit(limit_bytes() // LARGEST_PART)
    # Blank lines are kept, because a quoted text may contain line ends.
    found = lines(file, shown, blank=True, streamed=streamed)
    texts = (decoded(data, f"{shown}, line {number}") for number, data in found)
    # ``above`` collects blank lines at the beginning of the file, and the line of column names.
    above: list[str] = []
    while not above or not above[-1].strip():
        if (text := next(texts, None)) is None:
            break
        above.append("\n" if _SEPARATOR_LINE.fullmatch(text) else text)
    header = "".join(above)
    separator = separator_in(header)
    # ``memory_of`` counts only commas, so the size of lines with other separators is checked here.
    if separator != ",":
        texts = (_with_few_cells(text, separator, shown) for text in texts)
    # The CSV reader is strict, because a missing quote would otherwise turn the rest of the file
    # into a single cell.
    # JSON lines in a CSV file keep their spaces, so that messages show line 1 as it is.
    spaced = f"{separator} " in header and "{" not in header
    return csv.DictReader(
        chain(above, texts), delimiter=separator, strict=True, skipinitialspace=spaced
    )


def header_in(start: str) -> str:
    """Return the line of column names at the beginning of a file."""
    named = (
        one for one in start.splitlines() if one.strip() and not _SEPARATOR_LINE.fullmatch(one)
    )
    return next(named, "")


def separator_in(header: str) -> str:
    """Return the separator of columns in a line of column names: the most frequent mark."""
    return max((",", "\t", ";", "|"), key=_QUOTED.sub("", header).count)


def _with_few_cells(text: str, separator: str, shown: str) -> str:
    if text.count(separator) > MAX_CELLS:
        raise DataError(f"{shown}: a line has more than {MAX_CELLS:,} cells")
    return text


def csv_rows(file: Traversable, shown: str, *, streamed: bool = False) -> Iterator[CsvRow]:
    """Yield the rows below the line of column names, with "" for missing values.

    If ``streamed`` is True, the size of the file is not limited. Raises DataError if the file is
    unreadable, too large or not CSV, or if a row has too many cells; the message names the line.
    """
    reader = csv_reader(file, shown, streamed=streamed)
    rows = reader.reader
    try:
        reader.fieldnames = next(filter(None, rows), None)
        for name, times in Counter(reader.fieldnames or ()).items():
            if name and times > 1:
                raise DataError(f"{shown}, line 1: column {shortened(repr(name))} appears twice")
        names = list(reader.fieldnames or ())
        width, blank = len(names), [""] * len(names)
        for cells in filter(None, rows):
            if any(cells[width:]):
                hint = ""
                if width == 1 or names[0].startswith("#"):
                    hint = f" ({shortened(repr(names[0]))}); remove lines above the column names"
                raise DataError(
                    f"{shown}, line {rows.line_num}: has more cells than line 1 has columns{hint}"
                )
            given = cells if len(cells) >= width else [*cells, *blank[len(cells) :]]
            yield CsvRow(rows.line_num, dict(zip(names, given, strict=False)))
    except csv.Error as error:
        old = "new-line character" in str(error)  # On old Macs, a line ends with CR without LF.
        reason = "its lines end in CR without LF: save it with LF" if old else error
        raise DataError(f"{shown}, line {rows.line_num}: not CSV: {reason}") from None


BATCH_ROWS = 16_384


def read_parquet(path: Path, *, any_type: bool = False) -> pa.Table:
    """Return the table in a Parquet file, with dictionary-encoded text columns.

    If ``any_type`` is True, columns may also hold lists, objects and dates. Raises DataError if the
    file is unreadable or too large, or has a column of a type that is not allowed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shown, memory = f"{path}", ReadMemory(f"{path}")
    # Python opens the file, because pyarrow cannot open a path that is not UTF-8.
    with opened(path, shown) as file:
        try:
            texts = _texts(pq.read_schema(file), shown, any_type=any_type)
            file.seek(0)
            found = pq.ParquetFile(file, read_dictionary=texts)
            declared = found.metadata.num_rows * found.metadata.num_columns
            for number in range(found.metadata.num_row_groups):
                declared += found.metadata.row_group(number).total_byte_size
            if declared > memory.limit or found.metadata.num_rows < 0:
                raise memory.too_large()
            batches = []
            for batch in found.iter_batches(BATCH_ROWS, use_threads=False):
                memory.take_bytes(batch.nbytes)
                batches.append(batch)
            return pa.Table.from_batches(batches, found.schema_arrow)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"{shown}: cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
            ) from None


def _texts(schema: pa.Schema, shown: str, *, any_type: bool) -> list[str]:
    from pyarrow import types

    names = []
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_string(kind) or types.is_large_string(kind):
            names.append(field.name)
        elif any_type or types.is_null(kind):
            continue  # A column without any value has the type null.
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise DataError(
                f"{shown}: column {field.name!r} is of type {kind}: must hold numbers or strings"
            )
    return names


LONG_KEY = 200  # maximum number of parts of a dotted TOML key
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{LONG_KEY},}}")
"""A pattern for dotted keys with too many parts, for which tomllib would need gigabytes."""

MAX_BYTES = 4 * MIB  # limit on a TOML text, because parsed tables take about 100 times its memory


def is_path(ref: str) -> bool:
    """Return whether a text is the path of a TOML file, and not the name of a bundled file."""
    return ref.endswith(".toml") or "/" in ref or "\\" in ref


def bundled_names(folder: Traversable) -> list[str]:
    """Return the names of the bundled files in a folder, in alphabetical order."""
    found = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def file_of(kind: str, ref: str, folder: Traversable) -> tuple[Traversable, str]:
    """Find a file by path, or by name in ``folder``; return the file and its name for messages.

    Raises UsageError for a name that ``folder`` does not contain.
    """
    if is_path(ref):
        return Path(ref), ref
    if ref not in (names := bundled_names(folder)):
        raise unknown_name(kind, ref, names)
    return folder / f"{ref}.toml", f"{ref}.toml"


def read_toml(file: Traversable, shown: str, *, secret: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file; error messages call the file ``shown``.

    Raises DataError if the file is unreadable or not valid TOML. The error message quotes the
    invalid line unless ``secret`` is True. Dates and integers of more than 64 bits are refused,
    because no key of fairbench accepts them.
    """
    text = _toml_text(file, shown)
    if found := _DEEP_KEY.search(text):
        raise DataError(f"{shown}: line {text.count(chr(10), 0, found.start()) + 1}: {TOO_DEEP}")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise DataError(f"{shown}: {TOO_DEEP}") from None
    # ValueError means that the text is not valid TOML, or that an integer has thousands of digits.
    except ValueError as error:
        if text.lstrip().startswith("{"):
            raise DataError(f"{shown}: is JSON, but must be TOML with lines KEY = VALUE") from None
        raise DataError(f"{shown}: {_error_place(str(error), text, secret=secret)}") from None
    except MemoryError:
        raise DataError(f"{shown}: not enough memory to read it") from None
    if is_too_deep(data):
        raise DataError(f"{shown}: {TOO_DEEP}")
    for key, reason in _unusable(data, ""):
        raise DataError(f"{shown}: {reason}" if secret else f"{shown}: {key}: {reason}")
    return data


def _toml_text(file: Traversable, shown: str) -> str:
    with opened(file, shown) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError(f"{shown}: is too large; the limit is {MAX_BYTES // MIB} MiB")
    try:
        # Editors on Windows write a byte order mark at the beginning of a file.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{shown}: is not UTF-8 text; save it as UTF-8") from None


def _unusable(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the key of each value that is not allowed in a TOML file, and why it is not allowed."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _unusable(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _unusable(inner, key)
    elif isinstance(value, int):
        if value not in INTEGERS:
            yield key, "an integer must fit into 64 bits"
    elif not isinstance(value, str | float):
        yield key, f"must not be a date or a time ({value})"


def _error_place(message: str, text: str, *, secret: bool) -> str:
    """Return tomllib's error with the invalid line, such as ``line 3: Invalid value: dp = = 4``."""
    lines = text.rstrip("\n").split("\n")
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return message.partition("; use sys.")[0]
    number = int(found[1]) if found[1] else len(lines)
    where = f"line {number}: {message.replace(found[0], '')}"
    return where if secret else f"{where}: {shortened(lines[number - 1].strip())}"


def dumps(data: Mapping[str, Any]) -> str:
    """Return nested mappings, strings, numbers, booleans and arrays as TOML text.

    ``data`` must not contain None.
    """
    return "\n".join(_toml_lines(data, ())).lstrip("\n") + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (len(inner) < len(table) or not table):
        yield ""
        yield f"[{'.'.join(_toml_key(part) for part in path)}]"
    for key, value in table.items():
        if key not in inner:
            yield f"{_toml_key(key)} = {toml_value(value)}"
    for key, value in inner.items():
        yield from _toml_lines(value, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line, which is also valid after ``--set NAME.PARAM=``."""
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # ``repr`` gives the shortest text that is read back as the same number.
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    assert isinstance(value, list | tuple), f"no TOML for {value!r}"
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def _toml_string(text: str) -> str:
    # JSON and TOML escape the same characters, except DEL, which only TOML escapes.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
