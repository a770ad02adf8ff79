"""Test the time axes of charts: round clock times of logs with dates, seconds of other logs."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from fairbench.files.times import ClockTime
from fairbench.metrics.traffic import Traffic
from fairbench.report.pages.chart import LEAST, MOST_TICKS, opacity, time_axis
from fairbench.report.pages.traffic_figures import wait_limits


def clock(text, zone):
    return ClockTime(datetime.fromisoformat(text).timestamp(), zone)


@pytest.mark.parametrize(
    ("began", "zone", "span_s", "label", "ticks"),
    [
        ("2026-11-25T14:02:00+00:00", "UTC", 600, "time, 2026-11-25 UTC",
         [(60 * n, f"14:{2 + n:02}") for n in range(0, 11, 2)]),
        ("2026-11-25T23:40:07+02:00", "+02:00", 5400, "time, 2026-11-25 to 2026-11-26 +02:00",
         [(293, "23:45"), (1193, "11-26"), (2093, "00:15"), (2993, "00:30"), (3893, "00:45"),
          (4793, "01:00")]),
        ("2026-03-01T10:00:58.500+00:00", "", 20, "time, 2026-03-01",
         [(1.5, "10:01:00"), (6.5, "10:01:05"), (11.5, "10:01:10"), (16.5, "10:01:15")]),
        ("2026-12-30T06:00:00-05:30", "-05:30", 4 * 86_400,
         "time, 2026-12-30 to 2027-01-03 -05:30",
         [(64_800, "12-31"), (151_200, "01-01"), (237_600, "01-02"), (324_000, "01-03")]),
    ],
)  # fmt: skip
def test_ticks_are_round_clock_times(began, zone, span_s, label, ticks):
    axis = time_axis(clock(began, zone), 0.0, span_s)
    assert axis.label == label
    assert [text for _, text in axis.ticks] == [text for _, text in ticks]
    assert [at_s for at_s, _ in axis.ticks] == pytest.approx([at_s for at_s, _ in ticks])


@pytest.mark.parametrize("span_s", [3, 50, 700, 5_000, 80_000, 10**6, 4 * 10**7, 10**9])
def test_ticks_are_few_and_inside_and_are_the_times_of_the_log(span_s):
    began = "2026-01-31T21:17:33.250+01:00"
    axis = time_axis(clock(began, "+01:00"), 100.0, 100.0 + span_s)
    if span_s < 5 * 10**8:
        assert 2 <= len(axis.ticks) <= MOST_TICKS + 1
    for at_s, text in axis.ticks:
        assert 100.0 <= at_s <= 100.0 + span_s
        moment = datetime.fromisoformat(began) + timedelta(seconds=at_s)
        assert text in (f"{moment:%H:%M:%S}", f"{moment:%H:%M}", f"{moment:%m-%d}")
        assert moment.microsecond == 0


def test_without_dates_or_round_times_the_axis_has_seconds():
    assert time_axis(None, 0.0, 50.0, "time of arrival") == ("time of arrival, s", ())
    axis = time_axis(clock("2026-11-25T14:02:00.5+00:00", "UTC"), 0.0, 0.4)
    assert axis == ("time, s since 2026-11-25 14:02:00 UTC", ())


def traffic(*waits_s):
    count = len(waits_s)
    zeros = np.zeros(count, dtype=np.int64)
    return Traffic(("a",), zeros, np.arange(count) * 1.0, np.ones(count), np.array(waits_s))


@pytest.mark.parametrize("waits_s", [(0.05, 0.93), (0.001, 0.4), (0.9,), (np.nan, 0.2)])
def test_short_waits_have_the_lightest_colour(waits_s):
    limits = wait_limits(traffic(*waits_s))
    assert max(opacity(wait_s, limits) for wait_s in waits_s if wait_s == wait_s) == LEAST


@pytest.mark.parametrize("waits_s", [(0.05, 12.0), (55.0, 60.0), (0.1, np.inf), (2.5, 40.0)])
def test_long_waits_have_a_strong_colour_even_if_all_wait(waits_s):
    limits = wait_limits(traffic(*waits_s))
    assert opacity(max(waits_s), limits) > 0.9


def test_whole_responses_are_compared_with_the_shortest():
    assert wait_limits(traffic(20.0, 21.0, 25.0), "response time")[0] == pytest.approx(20.1)
    assert wait_limits(traffic(0.2, 0.3), "response time") == (1.0, 10.0)
