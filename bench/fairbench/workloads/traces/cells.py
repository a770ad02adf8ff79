"""Single cells of traces: checks of values, and errors for missing columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fairbench.errors import DataError, printable, shortened, unknown_name
from fairbench.files.column_names import Column, nearest
from fairbench.files.json_text import INTEGERS, inner
from fairbench.files.times import is_blank, is_missing, is_number, nanoseconds
from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.rows import MAX_NAME
from fairbench.workloads.traces.texts import text_of

OWN = "="
"""Prefix of the names under which a format stores fields that it has found itself."""


def no_column(field: str, taken: Iterable[str], record: Record, where: str) -> DataError:
    """Return the error for a field without a recognized column; ``taken`` are columns in use."""
    near = nearest(field, record, taken)
    hint = f" Did you mean {field}={near}?" if near else ""
    return DataError(
        f"{where}: no column for {field} (has {_has(record)}): name it with "
        f"--map {field}=COLUMN.{hint}"
    )


def no_client(taken: Iterable[str], record: Record) -> str:
    """Return the remark on a file without a recognized column of clients."""
    near = nearest("client", record, taken) or "COLUMN"
    return f"no column for client (has {_has(record)}): name it with --clients-from {near}"


def _has(record: Record) -> str:
    names = (printable(str(one)) for one in record if not str(one).startswith(OWN))
    return shortened(", ".join(islice(names, 12)))


def no_such_column(name: str, record: Record, where: str) -> DataError:
    """Return the error for a missing column that a user named; nested names list what exists.

    Args:
        name: Name of the missing column; dots lead into nested objects.
    """
    outer = name.partition(".")[0]
    inside = outer != name and isinstance(record.get(outer), Mapping)
    known = _leaves(record[outer], f"{outer}.") if inside else map(str, record)
    missing = unknown_name("column", name, (one for one in known if not one.startswith(OWN)))
    return DataError(f"{where}: {printable(str(missing))}")


def _leaves(value: Mapping[str, Any], before: str) -> Iterator[str]:
    """Yield the dotted names of all values in an object, at any depth."""
    for key, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _leaves(one, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def shown(column: Column, value: Any) -> str:
    """Return a cell as error messages show it."""
    return f"{column.name.removeprefix(OWN)} = {shortened(repr(value))}"


def cell_of(record: Record, name: str) -> Any:
    """Return a record's value under a name; dots in the name lead into nested objects."""
    if name in record or "." not in name:
        return record.get(name)
    return inner(record, *name.split("."))


def given(value: Any) -> Any:
    """Return the value of a cell, or None for an empty cell."""
    return None if is_missing(value) else value


def time_ns(value: Any, unit: str, column: Column, where: str) -> int:
    """Return a time or a duration in ns. Raises DataError for another value."""
    try:
        return nanoseconds(value, unit)
    except (ValueError, OverflowError):
        kind = f"a number (in {unit})" if is_number(value) else "a number"
        raise DataError(
            f"{where}: {shown(column, value)}: must be {kind} or an ISO 8601 "
            "time, such as 2024-05-01T12:00:00Z, in the years 1824 to 2115"
        ) from None


def token_count(value: Any, column: Column | None, where: str, most: int) -> int:
    """Return a number of tokens; 0 if the record has none, as for a failed request."""
    if column is None or given(value) is None:
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
            f"{where}: {shown(column, value)}: must be a whole number of tokens from 0 to {most:,}"
        )
    return int(number)


def name_of(value: Any, field: str, where: str) -> str:
    """Return a name, or "" for none; numbers are names. Only a client may have the name None."""
    if is_blank(value) or (field == "session" and is_missing(value)):
        return ""
    text = str(value).strip() if isinstance(value, str | int | float) else None
    if text is None or len(text) > MAX_NAME:
        raise DataError(f"{where}: {field} = {shortened(repr(value))}: must be a text or a number")
    return text


def synthetic_of(record: Record) -> str:
    """Return the parts of a record that a fairbench trace marks as not recorded."""
    value = record.get("synthetic")
    return value if isinstance(value, str) and len(value) <= MAX_NAME else ""


def prompt_text(value: Any, where: str) -> str:
    """Return the text of a prompt, or "" for none."""
    if is_blank(value) or value in ("[]", "{}"):
        return ""
    if not isinstance(value, str | list):
        raise DataError(f"{where}: text = {shortened(repr(value))}: must be a text or messages")
    return text_of(value)


def check_fit(blocks: int, size: int, tokens: int, where: str) -> None:
    """Raise DataError if there are more blocks than the prompt's tokens allow."""
    if blocks > -(-tokens // size):
        raise DataError(
            f"{where}: hash_ids: {blocks} blocks of {size} tokens are more than the "
            f"{tokens} input tokens of the request; give the number of tokens of a block "
            "with --trace-block-size"
        )


def _block_id(value: Any) -> Any:
    """Return an identity as an integer, if the value is one. Raises ValueError for other texts."""
    if isinstance(value, str):
        return int(value, 16 if value.lower().startswith("0x") else 10)
    exact = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if exact else value


def block_ids(value: Any, where: str) -> list[int]:
    """Return block identities: a JSON list, or numbers in CSV separated by spaces or commas.

    Unsigned 64-bit identities are read as the signed numbers with the same bits. Identities may be
    strings or whole floats, because not every tool writes 64-bit integers exactly.
    """
    if given(value) is None:
        return []
    try:
        listed = value if isinstance(value, list) else value.strip("[]").replace(",", " ").split()
        found = [_block_id(one) for one in listed]
        if all(type(one) is int and one in INTEGERS for one in found):
            return [one - 2**64 if one >= 2**63 else one for one in found]
    except (AttributeError, ValueError):
        pass
    raise DataError(f"{where}: hash_ids = {shortened(repr(value))}: must be a list of integers")
