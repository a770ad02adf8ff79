"""Test ``fairbench sweep`` end to end on tiny grids."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.report.progress import LineProgress
from fairbench.results.comparison import compare_sweep
from fairbench.results.new_directories import LOCK_FILE, run_folder
from fairbench.results.store import SweepStore
from fairbench_papers.latex import latex_table
from tests.one_by_one import in_processes

GRID = ["--schedulers", "vtc,lpm", "--workloads", "chat", "--num-programs", "2"]
PATIENCE_S = 300  # long, because the machine may be busy


def invoke(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def contents(path):
    """Return the modification time of every file below a folder, except locks."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != LOCK_FILE)
    return {str(file): file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Run a sweep of two points in processes. Return its directory."""
    parent = tmp_path_factory.mktemp("runs")
    with in_processes():
        result = invoke(*GRID, "--result-dir", parent)
    assert result.exit_code == 0, result.output
    return result, parent / "sweep"


def test_a_sweep_compares_its_points(swept):
    result, path = swept
    lines = result.stdout.split("\n")
    assert lines[0].startswith("vtc has the lowest P95 of the well-behaved clients: 29.6 s at")
    assert "simulated on a100-80gb/llama-3.1-8b/tp1/measured-sglang, seed 0" in lines
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2].isalpha()] == [
        "vtc",
        "lpm",
    ]
    assert lines[-2] == f"files  {path}"
    assert max(map(len, lines)) <= 100
    told = [re.sub(r" after \d+ s:", "", line) for line in result.stderr.splitlines()]
    assert [line.split(" ", 4)[:4] for line in told] == [
        ["fairbench:", f"{number}", "of", "3"] for number in (1, 2, 3)
    ]
    assert {line.split(" ", 4)[4] for line in told} == {
        "chat s1 dp 1, vtc, seed 0",
        "chat s1 dp 1, lpm, seed 0",
        "clients alone as in chat s1 dp 1, vtc, seed 0",
    }


def test_a_sweep_leaves_normal_run_directories_and_tables_of_all_metrics(swept):
    _, path = swept
    runs = sorted(one.name for one in (path / "runs").iterdir())
    assert runs == ["lpm-chat-s1-dp1-seed0", "vtc-chat-s1-dp1-seed0"]
    shown = CliRunner().invoke(app, ["show", str(path / "runs" / runs[0])])
    assert shown.exit_code == 0
    assert list((path / "failed").iterdir()) == []
    assert len(list((path / "alone").glob("*.json"))) == 1
    rows = pq.read_table(path / "metrics.parquet").to_pylist()
    summary = json.loads((path / "runs" / rows[0]["run"] / "summary.json").read_text())
    plain = {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
    assert {key: rows[0][key] for key in plain} == plain
    assert rows[0]["sharing_incentive_p99"] > 0
    best = max(row["service_rate_tok_s"] for row in rows)
    assert {row["best_service_rate_tok_s"] for row in rows} == {best}


def test_json_is_one_object_and_nothing_else(tmp_path):
    asked = ["--num-runs", 2, "--name", "twice", "--json", "--disable-tqdm"]
    result = invoke(*GRID, *asked, "--result-dir", tmp_path)
    assert result.exit_code == 0
    comparison = json.loads(result.stdout)
    path = tmp_path / "twice"
    assert json.loads((path / "comparison.json").read_text()) == comparison
    assert [(cell["cell"], cell["seeds"]) for cell in comparison["cells"]] == [
        ("vtc", [0, 1]),
        ("lpm", [0, 1]),
    ]
    assert comparison["cells"][0]["sharing_incentive_p50"]["runs"] == 2
    assert comparison["failures"] == []
    assert result.stderr == f"fairbench: saved to {path}\n"


def test_finished_points_are_never_run_again(swept, tmp_path):
    _, original = swept
    path = tmp_path / "sweep"
    shutil.copytree(original, path)
    shutil.rmtree(path / "runs" / "lpm-chat-s1-dp1-seed0")
    before = contents(path / "runs") | contents(path / "alone")
    assert invoke("--resume", path, "--dry-run").stdout.startswith("chat s1 dp 1, lpm, seed 0: ")
    result = invoke("--resume", path)
    assert result.exit_code == 0, result.output
    after = contents(path / "runs") | contents(path / "alone")
    assert before.items() < after.items()
    for name in ("requests.parquet", "summary.json"):
        files = [one / "runs" / "lpm-chat-s1-dp1-seed0" / name for one in (path, original)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert (path / "metrics.csv").read_bytes() == (original / "metrics.csv").read_bytes()
    assert invoke("--resume", path, "--dry-run").stdout == "0 points, about 0 requests in all\n"


def test_show_and_latex_count_the_points_that_are_missing(swept, tmp_path):
    path = shutil.copytree(swept[1], tmp_path / "sweep")
    shutil.rmtree(path / "runs" / "lpm-chat-s1-dp1-seed0")
    assert "Only 1 of 2 points are finished." in CliRunner().invoke(app, ["show", str(path)]).stdout
    assert "\n% Only 1 of 2 points are finished.\n" in latex_table(compare_sweep(path))


def test_points_of_another_sweep_are_reused(swept, tmp_path):
    _, original = swept
    result = invoke(*GRID, "--reuse", original, "--name", "again", "--result-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stderr == "", (
        "the servers of this run did not become ready, so there are no results"
    )
    assert (tmp_path / "again" / "metrics.csv").read_bytes() == (
        original / "metrics.csv"
    ).read_bytes()


def test_a_sweep_does_not_touch_a_run_of_another_process(swept):
    _, path = swept
    with run_folder(path, "alone"):
        before = contents(path)
        result = invoke("--resume", path)
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"fairbench: {path}: another process is executing this run; wait until it ends\n"
    )
    assert contents(path) == before


@pytest.mark.parametrize(
    ("flags", "count"), [([], 3), (["--num-runs", 1], 1), (["--num-programs", 1], 3)]
)
def test_other_flags_override_quick(flags, count):
    quick = ("--schedulers", "vtc", "--workloads", "chat", "--quick", "--dry-run", "--json")
    listed = json.loads(invoke(*quick, *flags).stdout)["points"]
    assert len(listed) == count
    few = [point["requests"] < 100 for point in listed]  # 40 programs have hundreds of requests
    assert all(few) is ("--num-programs" in flags)


def test_a_dry_run_lists_the_points_and_makes_nothing(tmp_path):
    result = invoke("fig7", "--dp", "1,2", "--dry-run", "--result-dir", tmp_path / "runs")
    assert result.exit_code == 0
    lines = result.stdout.split("\n")
    assert len(lines) == 6 * (3 + 5) * 8 + 2
    assert lines[0].startswith("tot s1 dp 1, lpm, seed 0: about ")
    assert lines[-2].startswith("384 points, about ")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_the_executor_that_a_run_would_refuse():
    unknown = invoke("fig7", "--dry-run", "--executor", "slurm")
    assert unknown.exit_code == 2
    assert "unknown executor 'slurm'" in unknown.stderr
    alone = invoke("fig7", "--dry-run", "--ray-address", "head:6379")
    assert alone.exit_code == 2
    assert "--ray-address head:6379: needs --executor ray" in alone.stderr


def test_a_large_sweep_prints_its_size_first(capsys):
    said = r"2 simulations, about 300,000 requests: roughly [0-9,]+ min on [0-9]+ processors"
    LineProgress().tasks([200_000.0, 100_000.0])
    assert re.search(said, capsys.readouterr().err)
    LineProgress().tasks([2_000.0])
    assert capsys.readouterr().err == ""


def test_rates_clients_and_halves_are_axes():
    axes = ("--request-rate", "0.5,1", "--clients", "5,6", "--router", "least-loaded,round-robin")
    result = invoke(*GRID, *axes, "--local", "fcfs", "--dry-run", "--json")
    names = [point["name"] for point in json.loads(result.stdout)["points"]]
    assert len(names) == 8
    assert "chat s1 dp 1 clients=5 request_rate=0.5, least-loaded+fcfs, seed 0" in names
    wrong = invoke(*GRID, "--request-rate", "fast", "--dry-run")
    assert wrong.exit_code == 2
    assert "--request-rate fast: must be numbers, separated by commas" in wrong.stderr


def test_show_prints_the_comparison_again(swept):
    result, path = swept
    assert CliRunner().invoke(app, ["show", str(path)]).stdout == result.stdout
    printed = json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).stdout)
    assert printed == json.loads((path / "comparison.json").read_text())
    around = CliRunner().invoke(app, ["show", str(path.parent)])
    assert around.exit_code == 2
    assert around.stderr.startswith(f"fairbench: {path.parent}: must be the directory of a run or")
    assert around.stderr.endswith(f"such as {path} inside it\n")


def test_a_failing_point_is_reported_and_stops_no_other(tmp_path):
    pools = ["--set", "engine.max_total_tokens=5,50_000", "--schedulers", "vtc"]
    result = invoke(*GRID, *pools, "--result-dir", tmp_path)
    assert result.exit_code == 1
    path = tmp_path / "sweep"
    name = "chat s1 dp 1 engine.max_total_tokens=5, vtc, seed 0"
    assert f"fairbench: {name}: workload chat: every request is larger" in result.stderr
    assert result.stderr.endswith(f"fairbench: runs failed: 1; see {path / 'failed'}\n")
    (failure,) = (path / "failed").iterdir()
    stored = json.loads(failure.read_text())
    assert stored["point"] == name
    assert stored["error"].startswith(
        "workload chat: every request is larger than the KV pool of 5 tokens; give a "
        "larger pool or shorter prompts"
    )
    assert "Traceback" in stored["traceback"]
    assert len(SweepStore(path).finished()) == 1
    assert "  vtc" in result.stdout


def endless(parent, signum):
    """Start a sweep with a short and an endless point, and signal it once the short one ends."""
    sweep = parent / "endless.toml"
    sweep.write_text(
        '[base]\nworkload = "chat"\nscheduler = "vtc"\n'
        "[[grid]]\nduration_s = 36000.0\n[[grid]]\nnum_programs = 1\n"
    )
    # four processes, one for each task: both points, and the clients alone at each
    script = "import os; os.cpu_count = lambda: 4\nfrom fairbench.cli.main import main; main()"
    command = [sys.executable, "-c", script, "sweep", str(sweep), "--result-dir", str(parent)]
    store = SweepStore(parent / "endless")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            end = time.monotonic() + PATIENCE_S
            while not ((store.path / "index.json").exists() and store.runs.exists()):
                assert time.monotonic() < end
                time.sleep(0.05)
            while not (store.finished() and store.alone()):
                assert time.monotonic() < end
                time.sleep(0.05)
            one.send_signal(signum)
            stdout, stderr = one.communicate(timeout=PATIENCE_S)
        finally:
            one.kill()
    return one.returncode, stdout, stderr, store


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_keeps_finished_points(tmp_path, signum, code):
    returncode, stdout, stderr, store = endless(tmp_path, signum)
    assert (returncode, stdout) == (code, "")
    size, *told, last = stderr.splitlines()
    assert "4 simulations, about " in size  # both points, and the clients alone at each
    assert last == (
        "fairbench: interrupted; 1 of 2 points are finished. Continue with: "
        f"fairbench sweep --resume {store.path}"
    )
    assert all(" after " in line for line in told), "of what was over before"
    assert len(told) <= 2
    assert len(store.finished()) == 1
    left = invoke("--resume", store.path, "--dry-run").stdout.split("\n")
    assert left[-2].startswith("1 point, ")


@pytest.mark.slow
def test_a_killed_sweep_loses_only_running_points(tmp_path):
    returncode, *_, store = endless(tmp_path, signal.SIGKILL)
    assert returncode == -signal.SIGKILL
    (identity,) = store.finished()
    store.discard_partial()
    assert list(store.finished()) == [identity]
    assert len(list(store.runs.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "sweep: missing; give a FILE.toml, one of fig1, fig10"),
        (["fig8x"], "unknown sweep 'fig8x'"),
        (["nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--dp", "1,two"], "--dp 1,two: must be whole numbers"),
        (["--schedulers", "vtc,,lpm"], "--schedulers vtc,,lpm: must be different words"),
        (["--schedulers", "vtc,lmp"], "unknown scheduler 'lmp'"),
        (["--dp", "1", "--set", "dlpm.quantum"], "--set dlpm.quantum: write NAME.PARAM=VALUE"),
        (["--dp", "1", "--num-runs", "0"], "num_runs = 0: must be greater than or equal to 1"),
        (["fig7", "--resume", "here"], "--resume here continues the sweep with its stored"),
        (["--resume", "nowhere"], "nowhere/sweep.toml: cannot be read"),
        (["--dp", "1", "--reuse", "nowhere"], "nowhere/sweep.toml: cannot be read"),
        (["--dp", "1", "--executor", "slurm"], "unknown executor 'slurm': choose from local, ray."),
        (["--dp", "1", "--ray-address", "h:1"], "--ray-address h:1: needs --executor ray"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, arguments, complaint):
    result = invoke(*arguments, "--result-dir", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fairbench: {complaint}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_examples_for_real_servers_list_their_points(engine):
    example = Path(__file__).parents[2] / "examples" / f"{engine}-cpu.toml"
    points = invoke(example, "--model", "DIR/model", "--dry-run").stdout.splitlines()
    named = [line.split(",")[1].strip() for line in points[:-1]]
    assert named == ["lpm", "vtc", "d2lpm", "fair-finish"]
