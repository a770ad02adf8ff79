"""Parsers of a record's cells: missing values, numbers, durations and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite, isnan
from typing import Any

from fairbench.files.times import THOUSANDS, UNITS, is_number, moment_of, number_of

NIL = frozenset(
    {
        *("", "-", "null", "undefined", "nil", "(null)", "(none)", "(nil)", "<nil>", "<null>"),
        *("[null]", "\\n", "<none>", "00000000-0000-0000-0000-000000000000", "0" * 32),
    }
)
"""Texts, in lower case, that logs contain in place of a missing value or client name."""

NOTHING = NIL | {"none", "nan", "na", "n/a", "#n/a", "<na>"}
"""Texts, in lower case, that logs contain in place of a missing number or time."""

_POINTED = re.compile(r"[1-9]\d{0,2}(\.\d{3})+")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d{1,20}),\d+")
_PART = re.compile(
    r"(\d{1,20}(?:\.\d{1,20})?|\.\d{1,20}) ?"
    r"(hours?|h|minutes?|mins?|ms|m|seconds?|secs?|s|us|µs|μs|ns)"
)
_CLOCK_TEXT = re.compile(r"(?:(\d{1,5}) days?,? )?(\d{1,4}):(\d\d):(\d\d(?:\.\d+)?)")
_PARTS_S = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_PARTS_S |= dict.fromkeys(("h", "hour", "hours"), 3600.0)
_PARTS_S |= dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0)
_PARTS_S |= dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0)


def is_missing(value: Any) -> bool:
    """Return whether a value of a file is missing: null, NaN, blanks, or a text such as ``n/a``.

    The function ``nameless`` checks client names, because a client may be named ``NaN``.
    """
    return is_blank(value) or (isinstance(value, str) and value.strip().lower() in NOTHING)


def nameless(value: Any) -> bool:
    """Return whether a value names no client, because it is blank or a text such as ``null``."""
    return is_blank(value) or (isinstance(value, str) and value.strip().lower() in NIL)


def is_blank(value: Any) -> bool:
    """Return whether a value of a file is empty: null, NaN (as a number), or blanks."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and isnan(value))


def is_thousands(text: str) -> bool:
    """Return whether the commas in a number may separate thousands."""
    return THOUSANDS.fullmatch(text) is not None and not text.lstrip("+-").startswith("0")


def with_point(value: Any) -> Any:
    """Convert a text such as ``1.234,5`` to ``1234.5``; return any other value unchanged."""
    if isinstance(value, str) and len(value) <= 40 and _DECIMAL_COMMA.fullmatch(value.strip()):
        return value.strip().replace(".", "").replace(",", ".")
    return value


def without_points(values: list[Any]) -> list[Any]:
    """Remove the points that separate thousands, as in ``1.234``, from texts of whole numbers.

    The texts are changed only if three digits follow every point. If every text has a single point
    and ends in ``.000``, the texts may be decimal numbers, so no text is changed.
    """
    pointed = [one for one in values if isinstance(one, str) and "." in one]
    if not pointed or not all(_POINTED.fullmatch(one) for one in pointed):
        return values
    alone = any(not isinstance(one, str) or one.isdigit() for one in values if one is not None)
    if not alone and all(one.endswith(".000") and one.count(".") == 1 for one in pointed):
        return values
    return [one.replace(".", "") if isinstance(one, str) else one for one in values]


def duration_s(value: Any) -> float | None:
    """Convert a text such as ``1m2.5s`` or ``0:00:02.5`` to seconds; other values give None."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    text = value.strip().removeprefix("PT").lower()
    if clock := _CLOCK_TEXT.fullmatch(text):
        days, hours, minutes, seconds = clock.groups()
        return int(days or 0) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    at, total = 0, 0.0
    while found := _PART.match(text, at):
        at, total = found.end(), total + float(found[1]) * _PARTS_S[found[2]]
    return total if at and at == len(text) else None


# A number without a unit counts as a Unix time in the first unit whose lower limit it reaches, and
# otherwise as seconds.
_SINCE_1970 = (("ns", 10**17), ("us", 10**14), ("ms", 10**11))
_LARGEST = 2**62  # limit on times in ns, so that the difference of two times fits 64 bits


class Nanoseconds(int):
    """A time that is known to be in nanoseconds, so that its unit is not guessed."""


def unit_of(value: Any) -> str:
    """Return the unit in which a number is a plausible time since 1970, by default seconds."""
    if isinstance(value, Nanoseconds):
        return "ns"
    number = number_of(value)
    found = (unit for unit, least in _SINCE_1970 if number is not None and abs(number) >= least)
    return next(found, "s")


def nanoseconds(value: Any, unit: str) -> int:
    """Return a time or duration in nanoseconds.

    If ``value`` is a number, its unit is ``unit``. An ISO 8601 text without a time zone is in UTC.
    Raises ValueError for a value that is neither a number nor a time, and for a time at least 146
    years before or after 1970.
    """
    number = number_of(value)
    if number is None:
        since = moment_of(value) - datetime(1970, 1, 1, tzinfo=UTC)
        found = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    elif isinstance(value, Nanoseconds):
        found = int(value)
    elif isinstance(number, float) and not isfinite(number * UNITS[unit]):
        raise ValueError(f"{value!r} is not a time")
    else:
        found = number * UNITS[unit] if isinstance(number, int) else round(number * UNITS[unit])
    if abs(found) >= _LARGEST:
        raise ValueError(f"{value!r} is out of range; times must be within 146 years of 0 or 1970")
    return found


def is_moment(value: Any) -> bool:
    """Return whether a value can be a point in time: a number or an ISO 8601 text."""
    if is_number(value):
        return True
    try:
        moment_of(value)
    except (ValueError, OverflowError):
        return False
    return True


def is_calendar(value: Any) -> bool:
    """Return whether a time is written as an ISO 8601 text instead of a number."""
    return not is_number(value)
