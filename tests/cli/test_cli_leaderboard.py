"""Test ``fairbench leaderboard`` on rows and stored sweeps, and its refusals."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.sweep import make_sweep, points
from fairbench.results.store import SweepStore
from tests.gate.gate_helpers import store

RATE, P95 = "service_rate_tok_s", "victim_p95_s"
HEAD = f"place,cell,seed,timing_profile,simulated,{RATE},victim_n,{P95}\n"


def invoke(*arguments):
    return CliRunner().invoke(app, ["leaderboard", *map(str, arguments)])


@pytest.fixture
def lines(tmp_path):
    """Return two schedulers in two configurations. vtc serves 10% less, but is twice as fast."""
    rows = [
        f"{place},{row},{seed},gpu/m,true,{rate * (100 + seed)},60,{late * (1 + seed)}"
        for place in ("tot s1 dp 2", "chat s1 dp 2")
        for row, rate, late in (("fcfs", 1.0, 8.0), ("vtc", 0.9, 4.0))
        for seed in range(3)
    ]
    path = tmp_path / "lines.csv"
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def stored_sweep(folder, schedulers, values, **changes):
    """Store a sweep with one run per scheduler and seed, with the given service rates."""
    grid = {"workload": "chat", "scenario": "none", "scheduler": schedulers, "num_programs": 1}
    sweep = make_sweep({"name": "s", "num_runs": len(values[0]), "grid": grid})
    specs = points(sweep)
    kept = SweepStore.create(folder, sweep, specs)
    rates = [rate for rates in values for rate in rates]
    for number, (spec, rate) in enumerate(zip(specs, rates, strict=True)):
        flags = {"scheduler": spec.scheduler, "seed": spec.seed}
        store(kept.runs / str(number), spec=flags, **{RATE: rate}, **changes)
    return kept.path


def test_a_table_shows_ranks_and_marks_noise(lines):
    result = invoke(lines, "--sort", RATE)
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith("simulated on gpu/m; 2 configurations, seeds 0 to 2")
    (fcfs,) = [line.split() for line in text.splitlines() if line.startswith("1 ")]
    (vtc,) = [line.split() for line in text.splitlines() if line.startswith("2 ")]
    assert fcfs[:3] == ["1", "fcfs", "1.00"]
    assert vtc[:4] == ["2", "vtc", "0.90!", "0.90-0.90"]
    assert "0.50+" in vtc
    assert max(map(len, text.splitlines())) <= 100


def test_the_other_formats_say_the_same(lines):
    found = json.loads(invoke(lines, "--sort", P95, "--format", "json").stdout)
    assert [(row["scheduler"], row["first"], row["last"]) for row in found["rows"]] == [
        ("vtc", 1, 1),
        ("fcfs", 2, 2),
    ]
    assert found["rows"][0]["scores"][P95]["value"] == pytest.approx(0.5)
    assert "| 1 | `vtc` |" in invoke(lines, "--sort", P95, "--format", "md").stdout
    again = lines.with_name("again.csv")
    again.write_text(invoke(lines, "--format", "csv").stdout)
    tables = [invoke(path, "--sort", P95).stdout.split("\n\n")[1] for path in (again, lines)]
    assert tables[0] == tables[1]


def test_one_configuration_and_one_row_can_be_selected(lines):
    result = invoke(lines, "--place", "chat s1", "--row", "vtc", "--sort", RATE)
    assert "chat s1 dp 2, seeds 0 to 2" in result.stdout
    assert "fcfs" not in result.stdout
    assert " 90.9 " in result.stdout


def test_a_scheduler_of_the_user_joins_from_another_sweep(tmp_path):
    board = stored_sweep(tmp_path / "a", ["fcfs", "vtc"], [(10.0, 20.0), (12.0, 22.0)])
    mine = stored_sweep(tmp_path / "b", ["dlpm"], [(13.0, 23.0)])
    found = json.loads(invoke(board, mine, "--sort", RATE, "--format", "json").stdout)
    assert [(row["scheduler"], row["first"], row["last"]) for row in found["rows"]] == [
        ("dlpm", 1, 1),
        ("vtc", 2, 2),
        ("fcfs", 3, 3),
    ]
    twice = invoke(board, board, "--sort", RATE, "--format", "json")
    assert len(json.loads(twice.stdout)["rows"]) == 2
    other = stored_sweep(tmp_path / "c", ["vtc"], [(99.0, 99.0)])
    result = invoke(board, other)
    assert result.exit_code == 2
    assert "the same run has different results; keep one of them" in result.stderr


def test_files_of_other_seeds_are_combined_and_of_the_same_seeds_are_refused(lines):
    head, *rows = lines.read_text().splitlines()
    parts = [lines.with_name("first.csv"), lines.with_name("last.csv")]
    for part, seeds in zip(parts, ("01", "2"), strict=True):
        mine = [row for row in rows if row.split(",")[2] in seeds]
        part.write_text("\n".join([head, *mine, ""]))
    assert invoke(*parts, "--sort", RATE).stdout == invoke(lines, "--sort", RATE).stdout
    result = invoke(lines, parts[1])
    assert result.exit_code == 2
    assert "seed 2 of tot s1 dp 2 is in" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "nowhere: no such directory"),
        (["."], ".: is not the directory of a sweep"),
        (["nowhere.csv"], "nowhere.csv: cannot be read"),
        (
            ["LINES", "."],
            "CSV files cannot be combined with directories of sweeps; give only one kind",
        ),
        (["LINES", "--sort", "speed"], "unknown metric 'speed'"),
        (
            ["LINES", "--sort", "victim_n"],
            "neither higher nor lower is better; choose another metric",
        ),
        (["LINES", "--baseline", "vct"], "unknown baseline 'vct': choose from fcfs, vtc. Did"),
        (["LINES", "--place", "judge"], "unknown place 'judge'"),
        (["LINES", "--row", "vct"], "unknown row 'vct'"),
    ],
)
def test_refusals_are_one_line(lines, arguments, complaint):
    result = invoke(*(lines if word == "LINES" else word for word in arguments))
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
