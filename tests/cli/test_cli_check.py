"""Test ``fairbench check`` end to end, also on a VTC that no longer lifts returning clients."""

import subprocess
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.schedulers.accounts.counters import Counters
from tests.gate.gate_helpers import measured, store

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--workload", "chat", "--scenario", "none", "--num-programs", "1", "--scheduler", "vtc"]
# With few slots in the batch, clients queue, leave the queue and return.
BUSY = ["--workload", "chat", "--duration", "20", "--scheduler", "vtc"]
BUSY += ["--max-running-requests", "16", "--request-rate", "1.25"]


def invoke(*arguments, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def run(parent, arguments):
    result = invoke("run", *arguments, "--result-dir", parent, "--json")
    assert result.exit_code == 0, result.output
    return parent


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Store a tiny experiment twice, the second time with a changed number."""
    folder = tmp_path_factory.mktemp("runs")
    one, two = run(folder / "one", TINY), run(folder / "two", TINY)
    (summary,) = two.glob("*/summary.json")
    summary.write_text(summary.read_text().replace('"refused": 0', '"refused": 3'))
    return one, two


def test_the_same_code_gives_the_same_numbers(tiny, tmp_path):
    result = invoke("check", tiny[0], run(tmp_path / "again", TINY))
    assert result.exit_code == 0
    assert result.stdout.split("\n")[-2] == "1 point, 1 check: 1 pass, 0 FAIL, 0 inconclusive"
    assert result.stderr == ""


def test_a_clause_that_fails_is_exit_code_1(tiny):
    result = invoke("check", *tiny, "--fail-if", "refused:+2", "--fail-if", "jain_index:-0%")
    assert result.exit_code == 1
    assert "refused:+2 0 3 +3 FAIL" in " ".join(result.stdout.split())
    assert result.stderr == (
        "fairbench: the check failed: 1 point, 2 checks: 1 pass, 1 FAIL, 0 inconclusive\n"
    )
    assert invoke("check", *tiny, "--fail-if", "refused:+3").exit_code == 0
    assert invoke("check", *tiny).exit_code == 1


def test_wrong_usage_is_exit_code_2_and_one_line(tiny, tmp_path):
    for arguments, said in (
        ([*tiny, "--fail-if", "jain_indx:-1"], "Did you mean 'jain_index'?"),
        ([*tiny, "--fail-if", "jain_index"], "write METRIC:-LOSS"),
        ([tiny[0], tmp_path / "nowhere"], "nowhere: no such directory"),
        ([*tiny, "--format", "html"], "--format"),
        ([*tiny, "--alpha", "2"], "--alpha"),
    ):
        result = invoke("check", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_without_a_clause_only_simulated_runs_can_be_checked(tmp_path):
    for side in "ab":
        emulated = {"simulated": False, "emulated": True}
        backend = {"kind": "emulator"}
        store(tmp_path / side, spec={"backend": backend}, **emulated)
    result = invoke("check", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 2
    assert "--fail-if is missing: runs on real servers need a limit" in result.stderr
    assert "measured" not in result.stderr


def test_too_few_measured_runs_pass_only_with_the_flag(tmp_path):
    arguments = ["check", tmp_path / "a", tmp_path / "b", "--fail-if", "jain_index:-0.02"]
    measured(tmp_path / "a", "jain_index", [0.9, 0.91])
    measured(tmp_path / "b", "jain_index", [0.5, 0.8])
    result = invoke(*arguments)
    assert result.exit_code == 1
    said = " ".join(result.stdout.split())
    assert "-0.235 [-1.15, +0.6805] from the limit, paired over 2 seeds; about 5 more" in said
    assert invoke(*arguments, "--inconclusive", "pass").exit_code == 0
    assert invoke(*arguments, "--inconclusive", "pass", "--alpha", "0.2").exit_code == 1


def test_github_gets_annotations_and_the_summary_of_the_job(tiny, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    arguments = ["check", *tiny, "--fail-if", "refused:+2", "--format", "github"]
    result = invoke(*arguments, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert result.exit_code == 1
    assert result.stdout.startswith("::error title=refused%3A+2::chat none dp 1, vtc, seed 0: FAIL")
    lines = summary.read_text().split("\n")
    assert lines[0] == "# before"
    assert (
        "| ❌ fail | chat none dp 1, vtc, seed 0 | 0 of 1 passed | refused:+2: FAIL, 0 to 3, +3, "
        "at most 2 is allowed |" in (lines)
    )


def test_sweeps_are_compared_with_their_own_metrics(tmp_path):
    grid = ["--schedulers", "vtc", "--workloads", "chat", "--num-programs", "1", "--name", "s"]
    for name in ("one", "two"):
        result = invoke("sweep", *grid, "--result-dir", tmp_path / name)
        assert result.exit_code == 0, result.output
    both = tmp_path / "one" / "s", tmp_path / "two" / "s"
    result = invoke("check", *both, "--fail-if", "sharing_incentive_p99:+0%")
    assert result.exit_code == 0, result.output


def enter_without_lift(account, client, waiting):
    """The seeded bug: a returning client keeps the credit of the time in which it was away."""
    account.of.setdefault(client, 0)


def test_vtc_without_its_lift_turns_the_gate_red(tmp_path, monkeypatch):
    baseline = run(tmp_path / "baseline", BUSY)
    monkeypatch.setattr(Counters, "enter", enter_without_lift)
    broken = run(tmp_path / "broken", BUSY)
    assert invoke("check", baseline, broken).exit_code == 1
    result = invoke("check", baseline, broken, "--fail-if", "max_service_gap:+10%")
    assert result.exit_code == 1
    assert "max_service_gap:+10%" in result.stdout


def script_of_the_action():
    """Return the shell script of the last step in action.yml."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    return textwrap.dedent(text.rpartition("run: |\n")[2])


@pytest.mark.parametrize("current", ["runs/new ones", ""])
def test_the_action_passes_every_clause_to_the_command(tmp_path, current):
    log = tmp_path / "log"
    command = tmp_path / "fairbench"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{log}\nexit 1\n')
    command.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "BASELINE": "-odd name",
        "CURRENT": current,
        "FAIL_IF": "jain_index:-0.02\n\nvictim_p99_s:+10%\n",
    }
    script = ["bash", "-eo", "pipefail", "-c", script_of_the_action()]
    done = subprocess.run(script, env=environment)
    assert done.returncode == 1
    command_line = ["check"] if current else ["baseline", "check"]
    command_line += ["--format", "github"]
    command_line += ["--fail-if", "jain_index:-0.02", "--fail-if", "victim_p99_s:+10%"]
    command_line += ["--", "-odd name", *([current] if current else [])]
    assert log.read_text().splitlines() == command_line
