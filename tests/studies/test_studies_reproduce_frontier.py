"""Test ``fairbench reproduce frontier`` end to end, on a load of a few seconds."""

import csv

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.workloads.model import SPECS
from fairbench_studies.frontier import command
from fairbench_studies.frontier.frozen import Cell, frozen

pytest.importorskip("seaborn", reason="figures need the plot extra")


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return flags for folders. The study has two pairs on half a minute of chat, and two seeds."""
    text = (SPECS / "chat.toml").read_text(encoding="utf-8")
    short = text.replace("duration_s = 300.0", "duration_s = 30.0")
    assert short != text
    workload = tmp_path / "short.toml"
    workload.write_text(short.replace("warmup_s = 30.0", "warmup_s = 3.0"), encoding="utf-8")
    cell = Cell(
        part="test", workload=str(workload), scenario="s1", dp=1, seeds=(6, 7), full=2, quick=1
    )
    few = frozen().model_copy(update={"pairs": ["vtc", "fair-finish"], "cells": [cell]})
    monkeypatch.setattr(command, "frozen", lambda _: few)
    names = {"--result-dir": "runs", "--output-dir": "plots", "--claims-dir": "tables"}
    return [str(part) for flag, name in names.items() for part in (flag, tmp_path / name)]


@pytest.mark.slow
def test_quick_then_whole_runs_only_missing_points(folders, tmp_path):
    first = invoke("frontier", "--quick", *folders)
    assert first.exit_code == 0, first.output
    assert "6 points, 6 of them to run" in first.stderr
    again = invoke("frontier", "--quick", *folders)
    assert "6 points, 0 of them to run" in again.stderr
    assert again.stdout == first.stdout
    whole = invoke("frontier", *folders)
    assert "12 points, 6 of them to run" in whole.stderr
    assert whole.exit_code == 0, whole.output
    with (tmp_path / "tables" / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["pair"], row["form"], row["seed"]) for row in rows} == {
        (pair, form, seed)
        for pair in ("vtc", "fair-finish")
        for form in ("published", "capped", "tuned")
        for seed in ("6", "7")
    }
    assert (tmp_path / "plots" / "frontier.svg").stat().st_size > 10_000
    assert "## Test configurations" in whole.stdout


def test_seeds_are_a_flag_of_the_frontier_only():
    result = invoke("fig8", "--seeds", "2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "fairbench: --seeds can be given only with frontier, not with fig8\n"


def test_more_seeds_than_any_cell_has_are_refused(folders):
    most = max(len(one.seeds) for one in frozen().cells)
    result = invoke("frontier", "--seeds", str(most + 1), *folders)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--seeds" in result.stderr
