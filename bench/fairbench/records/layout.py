"""The description of a format of records, and the values that a format may find itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]
Record = Mapping[str, Any]
Spread = Callable[[Record, str], Iterable[Object]]
"""A function that returns the requests of a record; the text is its location."""


class Run(NamedTuple):
    """The requests of one run of a benchmark, and the facts that the file states about the run.

    ``completed`` is the number of successful requests that the file states, or None; ``remarks``
    name the facts of requests that it lacks.
    """

    requests: list[Object]
    completed: int | None = None
    remarks: tuple[str, ...] = ()


def _never(first: Record) -> bool:
    return False


@dataclass(frozen=True)
class Layout:
    """A format of records.

    Attributes:
        name: Name that commands show and take.
        fits: Returns whether a file that begins with this record has the format.
        fields: Columns of fields, the first that has a value; dots lead into nested objects. Other
            fields are found by common names, unless ``exact``.
        units: Units of the times of these fields, if the column's name has none.
        unit: Unit of all times, if neither the column's name nor ``units`` says it.
        spread: Returns a new function that spreads a record into requests, if records are nested.
        runs: Returns the runs of a whole file, if a record is a run or a part of one, or functions
            that make them.
        keep: Returns whether a record is a request that reached a server.
        events: Whether records without token counts are other events than requests.
        block_size: Tokens of a block of ``hash_ids``.
        own_units: Whether the file states every unit, so that users cannot.
        at_once: Whether all requests start at time 0, for lack of start times.
        uncached: Whether the server has no prefix cache.
        keeps_clock: Whether times are on the run's own clock, whose zero is kept.
        refuses: Whether a request without an end was turned away, and has not failed.
        nothing: What a file without requests holds.
    """

    name: str
    fits: Callable[[Record], bool] = _never
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


def has_all(*names: str) -> Callable[[Record], bool]:
    """Return a test for records that have all of these keys."""
    needed = frozenset(names)
    return lambda first: needed <= first.keys()


def first_given(*values: Any) -> Any:
    """Return the first value that is present and not empty."""
    return next((value for value in values if value not in (None, "", [], {})), None)
