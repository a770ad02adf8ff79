"""Test a log's clock: dates, or seconds from the first request."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.files.times import ClockTime, clock_of, read_clock, zone_of

NOON_S = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "zone"),
    [
        ("2026-11-25T12:00:00Z", "UTC"),
        ("2026-11-25 12:00:00 UTC", "UTC"),
        ("2026-11-25T12:00:00+00:00", "UTC"),
        ("2026-11-25T12:00:00+05:30", "+05:30"),
        ("2026-11-25T12:00:00-0800", "-08:00"),
        ("2026-11-25 12:00:00.123", ""),
        (1764072000, "UTC"),
        ("1764072000000", "UTC"),
    ],
)
def test_the_offset_is_that_of_the_log(value, zone):
    assert zone_of(value) == zone


@pytest.mark.parametrize(
    ("zone", "start_s", "span_s", "shown"),
    [
        ("UTC", 0, 600, "12:02:00 to 12:06:01 UTC"),
        ("", 0, 600, "12:02:00 to 12:06:01"),
        ("+05:30", 0, 600, "17:32:00 to 17:36:01 +05:30"),
        ("UTC", 0.4, 86_400, "2026-11-25 12:02:00 to 12:06:01 UTC"),
        ("+12:00", -180, 600, "2026-11-25 23:59:00 to 2026-11-26 00:03:01 +12:00"),
    ],
)
def test_a_window_has_dates_if_the_log_spans_days(zone, start_s, span_s, shown):
    clock = clock_of(NOON_S + start_s, zone, span_s)
    assert clock.window(120.0, 361.0) == shown
    assert read_clock(clock.iso, span_s) == clock


@pytest.mark.parametrize("start_s", [0.0, 3600.0, 1e11, -1e9])
def test_times_without_dates_have_no_clock_time(start_s):
    assert clock_of(start_s, "UTC", 600.0) is None
    assert read_clock(None, 600.0) is None


def test_the_first_time_keeps_its_milliseconds():
    assert ClockTime(NOON_S + 0.25, "UTC").iso == "2026-11-25T12:00:00.250Z"
    assert ClockTime(NOON_S, "").iso == "2026-11-25T12:00:00.000"


BEGAN = datetime(2026, 11, 25, 21, 59, 30, tzinfo=UTC)
TEXTS = {
    "seconds": (lambda at_s: f"{at_s}", None),
    "unix": (lambda at_s: f"{BEGAN.timestamp() + at_s:.3f}", "21:59:50 to 22:00:50 UTC"),
    "utc": (lambda at_s: f"{BEGAN + timedelta(seconds=at_s):%FT%TZ}", "21:59:50 to 22:00:50 UTC"),
    "local": (lambda at_s: f"{BEGAN + timedelta(seconds=at_s):%F %T}", "21:59:50 to 22:00:50"),
    "offset": (
        lambda at_s: f"{BEGAN + timedelta(hours=2, seconds=at_s):%FT%T}+02:00",
        "2026-11-25 23:59:50 to 2026-11-26 00:00:50 +02:00",
    ),
}


def log_of(folder, time_of):
    """Return a log of 100 s in which heavy sends 10 times the others' load from 20 to 80 s."""
    rows = [
        (at_s, client)
        for at_s in range(101)
        for client in ("a", "b", "c", "d", *["heavy"] * (10 if 20 <= at_s <= 80 else 0))
    ]
    lines = [
        f"{time_of(at_s)},{client},500,50,{10 if 20 <= at_s <= 80 else 0.1},12"
        for at_s, client in rows
    ]
    header = "time,client,input_tokens,output_tokens,ttft_s,latency_s"
    (folder / "log.csv").write_text("\n".join([header, *lines]) + "\n")
    return str(folder / "log.csv")


def test_waits_in_a_replay_have_clock_times_too(tmp_path):
    log = Path(log_of(tmp_path, TEXTS["utc"][0]))
    log.write_text("\n".join(line.rsplit(",", 2)[0] for line in log.read_text().splitlines()))
    flags = ("--no-plan", "--dp", 1, "--scheduler", "fcfs", "--gpu", "a10g", "--disable-tqdm")
    text = text_of("diagnose", log, *flags)
    assert re.search(r"From \d+ to \d+ s \(2\d:\d\d:\d\d to 22:\d\d:\d\d UTC\)", text)


def text_of(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize("kind", TEXTS)
def test_floods_have_clock_times_where_the_log_has_dates(kind, tmp_path):
    time_of, shown = TEXTS[kind]
    log, page = log_of(tmp_path, time_of), tmp_path / "page.md"
    flags = ("--no-plan", "--dp", 1, "--scheduler", "fcfs", "--disable-tqdm", "--report", page)
    flood = "heavy floods from 20 to 80 s" + (f" ({shown})" if shown else "")
    assert f"{flood}: " in text_of("diagnose", log, *flags)
    assert f"{flood}: " in " ".join(page.read_text().split())
    scored = text_of("score", log, "--report", page)
    assert f"{flood}: " in " ".join(page.read_text().split())
    worst = re.search(r"worst 60 s .*? from \d+ to \d+ s( \(.*?\))?;", scored)[1]
    form = f" ({shown})" if shown else ""
    assert re.sub(r"\d", "0", worst or "") == re.sub(r"\d", "0", form)
    text_of("report", log, "-o", page)
    assert f"{flood}: " in " ".join(page.read_text().split())
