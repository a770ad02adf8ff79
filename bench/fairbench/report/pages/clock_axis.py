"""The axis of a chart over a log's time: clock times where the log has dates, else seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil, floor
from typing import NamedTuple

from fairbench.files.times import Clock
from fairbench.report.pages.chart import Ticks

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
MOST_TICKS = 6
STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE_S * count for count in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * count for count in (1, 2, 3, 6, 12)),
    *(DAY_S * count for count in (1, 2, 7, 14, 28, 91, 182, 364)),
)


class TimeAxis(NamedTuple):
    """The label of an axis, and its ticks; without ticks, round seconds have one."""

    label: str
    ticks: Ticks = ()


def time_axis(clock: Clock | None, start_s: float, end_s: float, name: str = "time") -> TimeAxis:
    """Return the axis of the times from ``start_s`` to ``end_s``, seconds on the log's clock.

    A range shorter than two seconds has no round clock times, and is in seconds.
    """
    step_s = next((step for step in STEPS_S if (end_s - start_s) / step <= MOST_TICKS), STEPS_S[-1])
    if clock is None:
        return TimeAxis(f"{name}, s")
    zone = f" {clock.zone}" if clock.zone else ""
    began = datetime.fromisoformat(clock.iso.removesuffix("Z")).replace(tzinfo=None)
    midnight = began.replace(hour=0, minute=0, second=0, microsecond=0)
    since_s = (began - midnight).total_seconds()  # of time 0
    numbers = range(ceil((start_s + since_s) / step_s), floor((end_s + since_s) / step_s) + 1)
    if len(numbers) < 2:
        return TimeAxis(f"{name}, s since {clock.at(0.0)}")
    moments = [midnight + timedelta(seconds=number * step_s) for number in numbers]
    ticks = [
        (number * step_s - since_s, _text(moment, step_s))
        for number, moment in zip(numbers, moments, strict=True)
    ]
    dates = dict.fromkeys(
        f"{began + timedelta(seconds=at_s):%Y-%m-%d}" for at_s in (start_s, end_s)
    )
    return TimeAxis(f"{name}, {' to '.join(dates)}{zone}", ticks)


def _text(moment: datetime, step_s: int) -> str:
    """Return a clock time, or at midnight between two dates the date."""
    if step_s >= DAY_S or (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return f"{moment:%m-%d}"
    return f"{moment:%H:%M}" if step_s >= MINUTE_S else f"{moment:%H:%M:%S}"
