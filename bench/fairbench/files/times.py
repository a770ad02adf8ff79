"""Parsers of missing values, numbers, durations and times, and the clock of a log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite, isnan
from typing import Any, NamedTuple

NIL = frozenset(
    {
        *("", "-", "null", "undefined", "nil", "(null)", "(none)", "(nil)", "<nil>", "<null>"),
        *("[null]", "\\n", "<none>", "00000000-0000-0000-0000-000000000000", "0" * 32),
    }
)
"""Texts, in lower case, that logs contain in place of a missing value or client name."""

NOTHING = NIL | {"none", "nan", "na", "n/a", "#n/a", "<na>"}
"""Texts, in lower case, that logs contain in place of a missing number or time."""

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_SPACED = re.compile(r"[+-]?\d{1,3}(?:([ '’\u00a0\u202f])\d{3})(?:\1\d{3})*")
"""A pattern for whole numbers with spaces or apostrophes between the thousands, as in ``1 234``."""
_POINTED = re.compile(r"\d{1,3}(\.\d{3})+")
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
MAX_TIME_S = 1e12  # longest duration in seconds (30,000 years); a longer duration must be a mistake


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


def number_of(value: Any) -> int | float | None:
    """Return a number, even from a text such as ``1,000``; return None for any other value."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or len(value) > 40 or "_" in value:
        return None
    if _THOUSANDS.fullmatch(value.strip()):
        value = value.replace(",", "")
    elif spaced := _SPACED.fullmatch(value.strip()):
        value = value.replace(spaced[1], "")
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return None


def is_thousands(text: str) -> bool:
    """Return whether the commas in a number may separate thousands."""
    return _THOUSANDS.fullmatch(text) is not None and not text.lstrip("+-").startswith("0")


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


UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "min": 60 * 10**9, "h": 3600 * 10**9}
"""The number of nanoseconds in each unit of time."""

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


def is_number(value: Any) -> bool:
    """Return whether a value is a number, possibly written as text."""
    return number_of(value) is not None


def moment_of(value: Any) -> datetime:
    """Parse an ISO 8601 time and return it in UTC; raise ValueError if ``value`` is not a time."""
    moment = zoned_moment_of(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def zoned_moment_of(value: Any) -> datetime:
    """Parse an ISO 8601 time, or a time of a web server's log, and keep the time zone.

    Raises ValueError if the value is not a time.
    """
    if not isinstance(value, str) or len(value) > 40:
        raise ValueError(f"{value!r} is not a time")
    text = value.strip().removesuffix(" UTC").removesuffix(" Z")
    if text[4:5] == text[7:8] == "/":
        text = text.replace("/", "-")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.strptime(text.strip("[]"), ACCESS_LOG_TIME)


UTC_ZONE = "UTC"
ACCESS_LOG_TIME = "%d/%b/%Y:%H:%M:%S %z"
# Numbers from 1e8 to 4.6e9 are taken for Unix times in seconds (years 1973 to 2115).
FIRST_DATE_S, LAST_DATE_S = 1e8, 4.6e9


class ClockTime(NamedTuple):
    """The calendar time at which a log's clock is 0, and the UTC offset of its times.

    ``zone`` is the UTC offset as text: UTC, +02:00, or "" if the log states no offset. ``days`` is
    True if the log spans several dates, so that times are printed with dates.
    """

    start_s: float
    zone: str = UTC_ZONE
    days: bool = False

    @property
    def iso(self) -> str:
        """The calendar time at which the log's clock is 0, in ISO 8601."""
        text = self._moment(0.0, whole=False).isoformat(timespec="milliseconds")
        return text.removesuffix("+00:00") + ("Z" if self.zone == UTC_ZONE else "")

    def at(self, at_s: float) -> str:
        """Return a time with its date and offset, such as ``2026-11-25 14:02:00 +02:00``."""
        return f"{self._moment(at_s):%Y-%m-%d %H:%M:%S} {self.zone}".rstrip()

    def window(self, start_s: float, end_s: float) -> str:
        """Return a period as a text, with dates if the log spans several dates."""
        first, last = self._moment(start_s), self._moment(end_s)
        date = f"{first:%Y-%m-%d} " if self.days else ""
        again = f"{last:%Y-%m-%d} " if self.days and first.date() != last.date() else ""
        return f"{date}{first:%H:%M:%S} to {again}{last:%H:%M:%S} {self.zone}".rstrip()

    def _moment(self, at_s: float, *, whole: bool = True) -> datetime:
        """Return a time in the log's time zone; ``whole`` rounds it to whole seconds."""
        offset = self.zone if self.zone not in ("", UTC_ZONE) else "+00:00"
        zone = datetime.fromisoformat(f"2000-01-01T00:00{offset}").tzinfo
        since_s = self.start_s + at_s
        since = timedelta(seconds=round(since_s) if whole else round(since_s, 3))
        return (datetime(1970, 1, 1, tzinfo=UTC) + since).astimezone(zone)


def clock_of(start_s: float, zone: str, span_s: float) -> ClockTime | None:
    """Return the clock of a log, or None if the log's times are not calendar times.

    Args:
        start_s: The Unix time of the log's second 0.
        zone: UTC offset of times in the log, as returned by ``zone_of``.
        span_s: Seconds from the first request to the end of the log.
    """
    if not FIRST_DATE_S <= start_s <= start_s + span_s < LAST_DATE_S:
        return None
    clock = ClockTime(start_s, zone)
    return clock._replace(days=clock.at(0.0)[:10] != clock.at(span_s)[:10])


def read_clock(text: str | None, span_s: float) -> ClockTime | None:
    """Restore a clock from the text ``ClockTime.iso``, or return None for a log without a clock."""
    if text is None:
        return None
    return clock_of(moment_of(text).timestamp(), zone_of(text), span_s)


def zone_of(value: Any) -> str:
    """Return a time's UTC offset: UTC for a number, and "" for a text that states no offset."""
    if is_number(value) or value.strip().endswith(UTC_ZONE):
        return UTC_ZONE
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return UTC_ZONE
    if moment.tzinfo is None:
        return ""
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}" if moment.utcoffset() else UTC_ZONE
