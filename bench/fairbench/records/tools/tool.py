"""The layout of a benchmark's export, with common helpers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairbench.files.json_text import inner
from fairbench.files.times import number_of
from fairbench.records.layout import Layout, Object, Record, Run

FIELDS = ("start", "ttft", "latency", "input_tokens", "output_tokens")
OPTIONAL = ("cached_tokens", "status", "error", "gaps", "request_id")


def layout(
    name: str,
    fits: Callable[[Record], bool],
    runs: Callable[[list[Object], str], list[Run]],
) -> Layout:
    """Return the layout of a benchmark's export, whose ``runs`` have requests of ``request``."""
    own = {field: field for field in (*FIELDS, *OPTIONAL)}
    units = dict.fromkeys(("start", "ttft", "latency", "gaps"), "s")
    return Layout(name, fits, own, units, runs=runs, own_units=True, exact=True)


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
