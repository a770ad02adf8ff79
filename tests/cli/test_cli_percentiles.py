"""Test ``--percentiles`` of run, show, score and compare, and its refusals."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app

TINY = ["--workload", "chat", "--num-programs", "3", "--disable-tqdm"]
CHOSEN = ["--percentiles", "90,25"]


def done(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a tiny run."""
    parent = tmp_path_factory.mktemp("runs")
    done("run", *TINY, *CHOSEN, "--scheduler", "vtc", "--result-dir", parent)
    (path,) = parent.iterdir()
    return path


def test_a_run_keeps_and_shows_its_percentiles(run):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["percentiles"] == "25,90"
    assert summary["p25_ttft_ms"] <= summary["p90_ttft_ms"]
    text = done("show", run)
    (heading,) = [line for line in text.splitlines() if "of fair" in line]
    assert [word for word in heading.split() if word[0] == "P"] == ["P25", "P90"]
    assert f"TTFT          P25 {summary['p25_ttft_ms']:.1f}, P90" in text
    assert 'percentiles = "25,90"' in (run / "experiment.toml").read_text()


def test_a_run_can_be_scored_again_with_the_same_or_other_percentiles(run):
    stored = json.loads((run / "summary.json").read_text())
    assert json.loads(done("score", run, "--json")) == stored
    other = json.loads(done("score", run, "--percentiles", "95", "--json"))
    assert other["percentiles"] == "95"
    assert other["p95_ttft_ms"] >= stored["p90_ttft_ms"]


def test_an_edited_summary_is_one_line(run, refused, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    for changes in ({"percentiles": "a"}, {"percentiles": [5]}, {"p90_ttft_ms": "slow"}):
        folder = tmp_path / "edited"
        folder.mkdir(exist_ok=True)
        for name in ("manifest.json", "experiment.toml"):
            (folder / name).write_bytes((run / name).read_bytes())
        (folder / "summary.json").write_text(json.dumps(summary | changes))
        assert next(iter(changes)) in refused("show", folder)


def test_a_comparison_has_a_row_for_each_percentile(run, tmp_path):
    text = done("compare", "vtc", "fcfs", *TINY, *CHOSEN, "--num-runs", "2",
                "--result-dir", tmp_path)  # fmt: skip
    assert "well-behaved P25" in text
    assert "well-behaved P90" in text
    assert "well-behaved P50" not in text


def test_foreign_records_can_have_other_percentiles(tmp_path):
    record = {"client": "a", "start": 0, "first_token": 1, "end": 2, "input_tokens": 3}
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record | {"output_tokens": 4}) + "\n")
    got = json.loads(done("score", path, "--percentiles", "90", "--json"))
    assert (got["p90_ttft_ms"], got["victim_p90_s"]) == (1000, 2)


@pytest.mark.parametrize("command", ["run", "sweep", "compare"])
def test_wrong_percentiles_are_refused_in_one_line(refused, command):
    sides = {"sweep": ["--schedulers", "vtc"], "compare": ["vtc", "fcfs"]}.get(command, [])
    assert "percentiles = '101': must be" in refused(command, *sides, "--percentiles", "101")
