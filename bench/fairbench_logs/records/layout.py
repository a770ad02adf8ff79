"""A description of formats of request records, and functions for prompt texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]
Record = Mapping[str, Any]
Spread = Callable[[Record, str], Iterable[Object]]
"""A function that takes a record and its location, and returns the requests in the record."""


class Run(NamedTuple):
    """The requests of one run of a benchmark, and facts about the run from the file.

    ``completed`` is the file's own count of successful requests, or None. ``remarks`` tell the user
    which information the file lacks.
    """

    requests: list[Object]
    completed: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A description of a format of request records, such as the names of its columns.

    Attributes:
        name: The name of the format, which commands show and accept.
        fits: A function that tests whether a record, usually the first of a file, has this format.
        fields: The names of columns by field, in order of preference; a dot in a name leads into a
            nested object. Fields without an entry are looked up under common column names, unless
            ``exact`` is True.
        units: The units of times by field, for columns whose names contain no unit.
        unit: The unit of times if neither ``units`` nor the name of the column states a unit.
        spread: A function that returns a ``Spread``, for records with nested requests.
        runs: A function that combines records into runs, for files whose records are runs or parts
            of runs. An item of the list that ``runs`` returns is a run, or a function that builds
            one.
        keep: A function that returns whether a record is a request that reached a server.
        exact: Whether only the columns in ``fields`` are read.
        events: Whether records without token counts are skipped, because they are events and not
            requests.
        block_size: The number of tokens in a block of ``hash_ids``.
        own_units: Whether the file states all units, so that a unit given by the user is refused.
        at_once: Whether all requests start at time 0, because the file has no start times.
        uncached: Whether the server has no prefix cache.
        keeps_clock: Whether times count from the start of the run, and must not be shifted.
        refuses: Whether requests without a recorded end count as refused and not as failed.
        nothing: The message for a file that contains no requests.
    """

    name: str
    fits: Callable[[Record], bool] = lambda first: False
    fields: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    spread: Callable[[], Spread] | None = None
    runs: Callable[[list[Object], str], Sequence[Run | Callable[[], Run]]] | None = None
    keep: Callable[[Record], bool] | None = None
    exact: bool = False
    events: bool = False
    block_size: int = 0
    own_units: bool = False
    at_once: bool = False
    uncached: bool = False
    keeps_clock: bool = False
    refuses: bool = False
    nothing: str = "no requests: holds no records"


def columns(*texts: str) -> dict[str, tuple[str, ...]]:
    """Parse lists of fields and columns; return the names of columns by field.

    A text such as ``"start=startTime client={user,team}_id|org"`` lists fields with their columns.
    A bar ``|`` separates alternative columns of a field, the preferred column first. Braces contain
    alternatives: ``{user,team}_id``, for example, stands for ``user_id|team_id``.
    """
    pairs = (word.split("=", 1) for word in " ".join(texts).replace(" |", "|").split())
    return {
        field: tuple(name for one in names.split("|") for name in _alternatives(one))
        for field, names in pairs
    }


def _alternatives(name: str) -> list[str]:
    head, brace, rest = name.partition("{")
    if not brace:
        return [name]
    inside, _, tail = rest.partition("}")
    return [f"{head}{one}{end}" for one in inside.split(",") for end in _alternatives(tail)]


def has_all(*names: str) -> Callable[[Record], bool]:
    """Return a function that tests whether a record has all given keys."""
    needed = frozenset(names)
    return lambda first: needed <= first.keys()


def first_given(*values: Any) -> Any:
    """Return the first value that is neither missing nor empty."""
    return next((value for value in values if value not in (None, "", [], {})), None)


def objects_in(value: Any) -> list[Object]:
    """Return the objects in a list, or [] if ``value`` is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return the text of a prompt, or the joined texts of the messages of a chat."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_message, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _message(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{text_of(value)}\n"
    content = value.get("content")
    return f"{value.get('role', '')}\n{'' if content is None else text_of(content)}\n"
