"""The interface of a benchmark's export, with common helpers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairbench.files.json_text import inner
from fairbench.files.times import number_of
from fairbench.score.files import Object

FIELDS = ("start", "ttft", "latency", "input_tokens", "output_tokens")
OPTIONAL = ("cached_tokens", "status", "error", "gaps", "id")


class Run(NamedTuple):
    """The requests of one run, in the form of ``request``.

    ``completed`` is the number of successful requests that the tool itself states, or None;
    ``remarks`` name the facts of requests that the export lacks.
    """

    requests: list[Object]
    completed: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """The export of one benchmark.

    ``recognise`` returns whether an object of a file belongs to the tool, ``runs`` the runs in all
    objects of a file.
    """

    name: str
    recognise: Callable[[Object], bool]
    runs: Callable[[list[Object]], list[Run]]


def request(
    more: Mapping[str, Any],
    *,
    start: Any,
    ttft: Any,
    latency: Any,
    input_tokens: Any,
    output_tokens: Any,
    **optional: Any,
) -> Object:
    """Return a request with fairbench's field names and times in seconds.

    An answer that was not streamed, and thus has no time to first token, has all tokens at the same
    time. Lists and objects in ``more`` are left out; optional fields that are not given are None.
    """
    kept = {key: value for key, value in more.items() if not isinstance(value, list | dict)}
    return {
        **kept,
        "start": start,
        "ttft": latency if ttft is None else ttft,
        "latency": latency,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        **dict.fromkeys(OPTIONAL),
        **optional,
    }


def first_of(value: Any, *keys: str) -> Any:
    """Return the value under the first key that has one."""
    return next((value[key] for key in keys if inner(value, key) is not None), None)


def numbers_in(value: Any) -> list[float]:
    """Return the numbers of a list; empty if the value is not a list."""
    found = map(number_of, value) if isinstance(value, list) else ()
    return [float(one) for one in found if one is not None]


def difference(later: Any, earlier: Any) -> Any:
    """Return a duration, or None if either of the two times is unknown."""
    one, other = number_of(later), number_of(earlier)
    return None if one is None or other is None else one - other


def scaled(value: Any, factor: float) -> Any:
    """Return a number in another unit; other values stay unchanged, for a later error."""
    number = number_of(value)
    return value if number is None else number * factor
