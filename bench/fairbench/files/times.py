"""Numbers and times written as text, and the clock of a log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_SPACED = re.compile(r"[+-]?\d{1,3}(?:([ '’\u00a0\u202f])\d{3})(?:\1\d{3})*")
"""A pattern for whole numbers with spaces or apostrophes between the thousands, as in ``1 234``."""
MAX_TIME_S = 1e12  # longest duration in seconds (30,000 years); a longer duration must be a mistake

UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "min": 60 * 10**9, "h": 3600 * 10**9}
"""The number of nanoseconds in each unit of time."""


def number_of(value: Any) -> int | float | None:
    """Return a number, even from a text such as ``1,000``; return None for any other value."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or len(value) > 40 or "_" in value:
        return None
    if THOUSANDS.fullmatch(value.strip()):
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
