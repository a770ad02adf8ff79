"""Test progress on stderr and the width of the summary."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.cli.output import print_summary
from fairbench.config.resolve import resolve
from fairbench.execute.tasks import Silent
from fairbench.report.progress import Bar, TerminalProgress, progress_line, shown_progress
from fairbench.report.run_table import summary_text
from fairbench.sim.run import SimulationProgress, simulate


@pytest.mark.parametrize(("columns", "width"), [(20, 60), (80, 80), (300, 100)])
def test_the_summary_is_as_wide_as_the_terminal(monkeypatch, capsys, columns, width):
    flags = {"workload": "chat", "scenario": "none", "num_programs": 1}
    summary = simulate(resolve(flags)).summary
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_summary(summary, Path("here"), complete=True)
    assert capsys.readouterr().out == summary_text(summary, path=Path("here"), width=width)


def two_tasks(progress):
    with progress.watching(), progress.tasks([1.0, 1.0]) as done:
        progress.update("going")
        done(0)
        progress.ended("first\n::error::", 1, 2)


def test_progress_is_silent_when_not_wanted(monkeypatch, capsys):
    two_tasks(Silent())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    two_tasks(Silent())
    assert capsys.readouterr().err == ""


def test_progress_without_a_terminal_is_one_line_for_each_of_many_tasks(capsys):
    two_tasks(shown_progress())
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"fairbench: 1 of 2 after \d+ s: first\\n::error::", line)


def test_progress_on_a_terminal_replaces_its_line(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    progress = shown_progress()
    assert isinstance(progress, TerminalProgress)
    progress.update("too early")
    with progress.watching():
        progress.update(SimulationProgress(1.0, None, 7, 9, {}))
    progress.update("too late")
    shown = capsys.readouterr().err
    assert "programs 7/9" in shown
    assert "too" not in shown


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (
            SimulationProgress(234.5, 480.0, 40, 60, {"a": 0.744, "b": 0.14, "c": 0.116}),
            "simulated 234 of 480 s  programs 40/60  share 74/14/12%",
        ),
        (SimulationProgress(1.0, None, 0, 0, {}), "simulated 1 s  programs 0/0"),
        (
            SimulationProgress(1_072.3, 480.0, 40, 60, {"a": 0.5}),
            "draining, simulated 1,072 s (arrivals ended at 480 s)  programs 40/60  share 50%",
        ),
        (
            SimulationProgress(1.0, None, 0, 9, {str(number): number / 45 for number in range(10)}),
            "simulated 1 s  programs 0/9  largest shares 20/18/16/13%",
        ),
    ],
)
def test_the_progress_line_shows_its_numbers(progress, expected):
    assert progress_line(progress) == expected


@pytest.mark.parametrize(
    ("now_s", "elapsed_s", "expected"),
    [
        # 400 s remain, at 5 simulated seconds a second
        (100.0, 20.0, "simulated 100 of 500 s, 80 s left  programs 4/6"),
        (100.0, 60.0, "simulated 100 of 500 s, 4 min left  programs 4/6"),
        (100.0, 4.0, "simulated 100 of 500 s  programs 4/6"),  # too early for an estimate
        (0.0, 20.0, "simulated 0 of 500 s  programs 4/6"),
        (600.0, 20.0, "draining, simulated 600 s (arrivals ended at 500 s)  programs 4/6"),
    ],
)
def test_a_long_simulation_prints_its_estimated_time(now_s, elapsed_s, expected):
    assert progress_line(SimulationProgress(now_s, 500.0, 4, 6, {}), elapsed_s) == expected


def test_the_last_progress_message_announces_the_metrics():
    told = []
    simulate(
        resolve({"workload": "chat", "scenario": "none", "num_programs": 1}),
        on_progress=lambda progress: told.append(progress_line(progress)),
    )
    assert "simulated" in told[0]
    assert told[-1] == "computing metrics of 4 programs"


@given(
    st.floats(0, 36_000),
    st.none() | st.floats(0, 36_000),
    st.integers(0, 9_999),
    st.integers(0, 10_000),
    st.floats(0, 36_000),
)
def test_the_progress_line_fits_a_terminal(now_s, end_s, programs, clients, elapsed_s):
    shares = {str(client): 1 / clients for client in range(clients)}
    progress = SimulationProgress(now_s, end_s, programs, programs, shares)
    assert len(progress_line(progress, elapsed_s)) <= 80


def test_the_bar_advances_by_the_costs_of_the_finished_tasks(monkeypatch):
    seen = []

    class Seen(Bar):
        def update(self, task, **changes):
            super().update(task, **changes)
            seen.append(self.tasks[0].percentage)

    monkeypatch.setattr("fairbench.report.progress.Bar", Seen)
    with TerminalProgress().tasks([3.0, 1.0, 4.0]) as done:
        for index in (1, 2, 0):
            done(index)
    assert seen == [12.5, 62.5, 100.0]


def test_the_progress_counts_tasks(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with shown_progress().tasks([3.0, 1.0]) as done:
        done(1)
        done(0)
    assert "2/2" in capsys.readouterr().err
