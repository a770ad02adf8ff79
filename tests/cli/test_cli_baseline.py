"""Test ``fairbench baseline`` end to end, and the committed baselines."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config import identity
from fairbench.results.store import read_run
from fairbench.schedulers.registry import PAIRS
from fairbench_gate.baseline import NOT_KEPT, difference, read_specs

FILES = ("experiment.toml", "summary.json", "manifest.json")
COMMITTED = Path(__file__).resolve().parents[2] / "results" / "baseline"
EXPERIMENT = """
scheduler = "vtc"
workload = "chat"
scenario = "none"
num_programs = 1
"""


def invoke(*arguments):
    return CliRunner().invoke(app, ["baseline", *map(str, arguments)])


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    """Return the output of ``update``, and the baseline that it stored for a bare experiment."""
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "mine").mkdir()
    (folder / "mine" / "experiment.toml").write_text(EXPERIMENT)
    return invoke("update", folder), folder


@pytest.fixture
def folder(updated, tmp_path):
    """Return a stored baseline that a test may damage."""
    return shutil.copytree(updated[1], tmp_path / "copy")


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")}


def edit(file, before, after):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_after_update_check_finds_no_change(updated):
    result, folder = updated
    assert (result.exit_code, result.stdout) == (0, "mine:\n  new\n")
    stored = contents(folder)
    assert set(stored) == {f"mine/{name}" for name in FILES}
    assert not set(NOT_KEPT) & set(json.loads(stored["mine/manifest.json"]))
    result = invoke("check", folder)
    assert result.exit_code == 0, result.output
    assert "1 check: 1 pass" in result.stdout
    assert contents(folder) == stored


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("victim_p95_s:-10%", "must be written victim_p95_s:+10%"),
        ("victim_p95:+10%", "unknown metric 'victim_p95'"),
        ("duration:+1", "neither higher nor lower is better"),
    ],
)
def test_a_wrong_clause_is_refused_before_anything_runs(folder, monkeypatch, clause, message):
    monkeypatch.setattr("fairbench.execute.repeats.simulate_all", lambda *_: 1 / 0)
    result = invoke("check", folder, "--fail-if", clause)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_a_changed_number_fails_until_the_baseline_is_updated(folder):
    stored = contents(folder)
    completed = json.loads(stored["mine/summary.json"])["completed"]
    changed = f"completed 1 {completed} "
    edit(folder / "mine" / "summary.json", f'"completed": {completed}', '"completed": 1')
    red = invoke("check", folder)
    assert red.exit_code == 1
    assert changed in " ".join(red.stdout.split())
    assert red.stderr.endswith(f". If this is intended: fairbench baseline update {folder}\n")
    result = invoke("update", folder)
    assert result.stdout.startswith("mine:\n")
    assert changed in " ".join(result.stdout.split())
    assert contents(folder) == stored


def test_a_changed_experiment_differs_from_the_stored_one(folder):
    edit(folder / "mine" / "experiment.toml", "burstiness = 1.0\n", "")
    result = invoke("check", folder)
    assert result.exit_code == 2
    assert "burstiness = 1.0 (not default); to store the results" in result.stderr


def test_an_experiment_without_results_is_refused_by_check(folder):
    (folder / "mine" / "summary.json").unlink()
    result = invoke("check", folder)
    assert result.exit_code == 2
    assert "mine/experiment.toml: no results are stored; to store" in result.stderr


def test_update_shows_new_settings_of_the_experiment_too(folder):
    run = read_run(shutil.copytree(folder / "mine", folder / "rerun"))
    assert difference(folder / "mine", run) == ""
    edit(folder / "mine" / "experiment.toml", "burstiness = 1.0\n", "")
    assert difference(folder / "mine", run) == "  experiment: burstiness = 1.0 (not default)\n"


def test_a_directory_without_experiments_is_wrong_usage(tmp_path):
    for command in ("check", "update"):
        result = invoke(command, tmp_path / "nowhere")
        assert result.exit_code == 2
        assert "must be a baseline, a directory with NAME/" in result.stderr


def test_only_simulated_experiments_can_be_rerun(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "experiment.toml").write_text('backend = "emulator"\n' + EXPERIMENT)
    result = invoke("check", tmp_path)
    assert result.exit_code == 2
    assert (
        "mine: backend emulator is not supported; a baseline needs the simulator" in result.stderr
    )


def test_the_committed_baselines_are_of_every_scheduler_and_resolved():
    specs = read_specs(COMMITTED)
    assert {(spec.scheduler, spec.workload.name) for spec in specs.values()} == {
        (scheduler, workload) for scheduler in PAIRS for workload in ("chat", "tot")
    }
    for name, spec in specs.items():
        manifest = json.loads((COMMITTED / name / "manifest.json").read_text())
        assert manifest["spec_identity"] == identity(spec)


def test_an_edited_experiment_is_refused_before_it_runs(folder):
    edit(folder / "mine" / "experiment.toml", "burstiness = 1.0\n", "burstiness = 2.0\n")
    result = invoke("check", folder)
    assert result.exit_code == 2
    assert "the experiment was edited after its results were stored; to store" in result.stderr
