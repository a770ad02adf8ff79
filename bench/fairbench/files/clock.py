"""The clock of a log: the date of its time 0, and its times of day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from fairbench.files.times import is_number, moment_of

UTC_ZONE = "UTC"
FIRST_DATE_S, LAST_DATE_S = 1e8, 4.6e9
"""Unix times from 1973 to 2115: earlier ones are seconds from some start, later ones mistakes."""


class Clock(NamedTuple):
    """The date of a log's time 0 and the UTC offset of its texts.

    ``zone`` is the offset as times are printed: UTC, +02:00, or empty if the log has none.
    ``days`` means that the log spans several dates, so that times are printed with their dates.
    """

    start_s: float
    zone: str = UTC_ZONE
    days: bool = False

    @property
    def iso(self) -> str:
        """The date of time 0 in ISO 8601."""
        text = self._moment(0.0, whole=False).isoformat(timespec="milliseconds")
        return text.removesuffix("+00:00") + ("Z" if self.zone == UTC_ZONE else "")

    def at(self, at_s: float) -> str:
        """Return a time with its date and offset, such as ``2026-11-25 14:02:00 +02:00``."""
        return f"{self._moment(at_s):%Y-%m-%d %H:%M:%S} {self.zone}".rstrip()

    def window(self, start_s: float, end_s: float) -> str:
        """Return a time from its start to its end, with dates if the log spans several."""
        first, last = self._moment(start_s), self._moment(end_s)
        date = f"{first:%Y-%m-%d} " if self.days else ""
        again = f"{last:%Y-%m-%d} " if self.days and first.date() != last.date() else ""
        return f"{date}{first:%H:%M:%S} to {again}{last:%H:%M:%S} {self.zone}".rstrip()

    def _moment(self, at_s: float, *, whole: bool = True) -> datetime:
        """Return a time in the log's zone, rounded to whole seconds if ``whole``."""
        offset = self.zone if self.zone not in ("", UTC_ZONE) else "+00:00"
        zone = datetime.fromisoformat(f"2000-01-01T00:00{offset}").tzinfo
        since_s = self.start_s + at_s
        since = timedelta(seconds=round(since_s) if whole else round(since_s, 3))
        return (datetime(1970, 1, 1, tzinfo=UTC) + since).astimezone(zone)


def clock_of(start_s: float, zone: str, span_s: float) -> Clock | None:
    """Return the clock of a log; None if its times are no dates.

    Args:
        start_s: Unix time of time 0.
        zone: Offset of the log's texts, as ``zone_of`` returns it.
        span_s: Time from the first request to the end of the log.
    """
    if not FIRST_DATE_S <= start_s <= start_s + span_s < LAST_DATE_S:
        return None
    clock = Clock(start_s, zone)
    return clock._replace(days=clock.at(0.0)[:10] != clock.at(span_s)[:10])


def read_clock(text: str | None, span_s: float) -> Clock | None:
    """Return the clock whose ``iso`` is the text; None without a text."""
    if text is None:
        return None
    return clock_of(moment_of(text).timestamp(), zone_of(text), span_s)


def zone_of(value: Any) -> str:
    """Return the UTC offset of a time: of a number UTC, of a text without an offset ""."""
    if is_number(value) or value.strip().endswith(UTC_ZONE):
        return UTC_ZONE
    moment = datetime.fromisoformat(value.strip())
    if moment.tzinfo is None:
        return ""
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}" if moment.utcoffset() else UTC_ZONE
