"""Test ``fairbench compare`` end to end on tiny runs."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.cli.compare import _advise
from fairbench.config.resolve import read_spec
from fairbench.errors import Interrupted
from fairbench.execute.comparison import carry_out, plan_comparison
from fairbench.execute.tasks import Interruption, RunContext
from fairbench.results.comparison import contrast
from fairbench.results.store import EXPERIMENT, SweepStore
from tests.gate.gate_helpers import measured, store
from tests.results.test_results_contrast import sides

# With few slots in the batch, clients queue and schedulers matter.
BUSY = ["--workload", "chat", "--duration", "5", "--set", "engine.max_running_requests=16"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Compare two schedulers over two seeds. Return the directory."""
    parent = tmp_path_factory.mktemp("runs")
    result = invoke("vtc", "fcfs", *BUSY, "--num-runs", 2, "--result-dir", parent)
    assert result.exit_code == 0, result.output
    return result, parent / "compare-vtc-fcfs"


def test_schedulers_run_over_the_same_seeds_and_are_compared(compared):
    result, path = compared
    lines = result.stdout.split("\n")
    assert lines[0] == (
        "2 seeds are too few to tell whether fcfs differs from vtc in 2 of 8 metrics."
    )
    assert lines[2].startswith("simulated on a100-80gb")
    assert "fcfs against vtc, seeds 0 to 1" in lines
    assert max(map(len, lines[: lines.index(f"files  {path}")])) <= 100
    assert "fairbench: 6 of 6 after" in result.stderr  # two of them simulate clients alone
    experiments = {
        (cell.summary["scheduler"], cell.summary["seed"])
        for cell in SweepStore(path).finished().values()
    }
    assert experiments == {("vtc", 0), ("vtc", 1), ("fcfs", 0), ("fcfs", 1)}


def test_the_command_for_more_seeds_counts_the_present_seeds(tmp_path, capsys):
    values = {"fcfs": (10.0, 20.0, 30.0), "vtc": (12.0, 19.0, 33.0)}
    rows = {name: {"victim_p95_s": ours, "victim_p50_s": ours} for name, ours in values.items()}
    rows["vtc"]["victim_p50_s"] = (12.0, 21.0, 33.0)
    pair = contrast(*sides(tmp_path, seeds=(0, 1, 2), **rows), list(rows["fcfs"]))
    more = {row.metric: row.more_seeds for row in pair.metrics}
    assert more["victim_p50_s"] < more["victim_p95_s"]
    _advise([pair], tmp_path)
    command, reason = capsys.readouterr().out.partition("more seeds  ")[2].splitlines()
    seeds = 3 + more["victim_p50_s"]
    assert command == f"fairbench compare --resume {tmp_path} --num-runs {seeds}"
    assert reason == "            may decide: well-behaved P50, s"


def test_the_directory_alone_is_compared_again_with_any_baseline(compared):
    result, path = compared
    again = invoke(path)
    assert again.exit_code == 0
    assert again.stdout.split("files")[0] == result.stdout.split("files")[0]
    turned = json.loads(invoke(path, "--baseline", "fcfs", "--json").stdout)
    (one,) = turned["comparisons"]
    assert (one["baseline"], one["other"]) == ("fcfs", "vtc")
    (there,) = json.loads(invoke(path, "--json").stdout)["comparisons"]
    key = "victim_p50_s"
    assert one["metrics"][key]["difference"] == -there["metrics"][key]["difference"]


def test_more_seeds_are_added_to_existing_seeds(compared, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(compared[1], folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}
    result = invoke("--resume", folder, "--num-runs", 3)
    assert result.exit_code == 0, result.output
    assert "fcfs against vtc, seeds 0 to 2" in result.stdout
    assert len(list(folder.glob("runs/*/summary.json"))) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_schedulers_and_files_run_on_the_load_and_the_seeds_of_a_directory(compared, tmp_path):
    (vtc,) = compared[1].glob("runs/vtc*seed1")
    (fcfs,) = compared[1].glob("runs/fcfs*seed1")
    file = tmp_path / "mine.toml"
    file.write_text((fcfs / "experiment.toml").read_text())
    where = ["--result-dir", tmp_path / "runs"]
    result = invoke(vtc, "lpm", file, *where, "--metric", "jain_index", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["comparisons"]
    assert [(one["baseline"], one["other"]) for one in found] == [("vtc", "lpm"), ("vtc", "fcfs")]
    for one in found:
        assert (one["seeds"], one["unlike"], list(one["metrics"])) == ([1], [], ["jain_index"])
    (again,) = (tmp_path / "runs").glob("*/runs/fcfs*/summary.json")
    assert json.loads(again.read_text()) == json.loads((fcfs / "summary.json").read_text())


def test_measured_repeats_of_two_directories_differ_only_by_name(tmp_path):
    measured(tmp_path / "old", "jain_index", [0.9, 0.91, 0.92])
    measured(tmp_path / "new", "jain_index", [0.8, 0.82, 0.81])
    result = invoke(tmp_path / "old", tmp_path / "new", "--metric", "jain_index")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "measured on a server" in said
    assert "new against old, seeds 0 to 2" in said
    assert "0.910 0.810 -0.100 [-0.125, -0.075] -11.0% less" in said


def test_wrong_usage_is_exit_code_2_and_one_line(compared, tmp_path):
    _, path = compared
    (vtc,) = path.glob("runs/vtc*seed0")
    (fcfs,) = path.glob("runs/fcfs*seed1")
    (tmp_path / "empty").mkdir()
    broken = store(tmp_path / "broken", complete=False)
    for arguments, said in (
        ([], "nothing to compare"),
        (["vtc"], "vtc: a comparison needs two arguments; give another"),
        (["vtc", "d2lmp"], "or a scheduler: choose from central-dlpm, d2lpm, "),
        (["vtc", "d2lmp"], "Did you mean 'd2lpm'?"),
        (["vtc", "vtc"], "this experiment is given twice; leave one out"),
        (["vtc", "lpm", "--workload", "chatt"], "Did you mean 'chat'?"),
        (["vtc", "lpm", "--dp", "0"], "dp = 0"),
        (["vtc", "lpm", "--num-runs", "0"], "--num-runs"),
        (
            ["vtc", "lpm", "--baseline", "vtc"],
            "baseline vtc: needs a single directory; leave baseline out",
        ),
        (["vtc", "nowhere.toml"], "nowhere.toml: cannot be read"),
        ([path, "lpm"], "holds 2 experiments; give this directory as the only"),
        ([vtc, fcfs], "vtc has seed 0 and fcfs has seed 1: a comparison needs"),
        (
            [vtc, fcfs, "--dp", "2"],
            (
                "dp: cannot be given with directories of stored runs, because nothing new is "
                "run; leave it out"
            ),
        ),
        (
            [path, "--dp", "2"],
            (
                "dp: cannot be given with directories of stored runs, because nothing new is "
                "run; leave it out"
            ),
        ),
        ([path, "--num-runs", "3"], "num_runs: cannot be given with directories of stored"),
        ([path, "--baseline", "fcsf"], "unknown baseline 'fcsf'"),
        ([path, "--metric", "jain_indx"], "Did you mean 'jain_index'?"),
        (
            [path, "--metric", "duration"],
            "neither higher nor lower is better; choose another metric",
        ),
        ([vtc], "must hold runs of two or more schedulers in one"),
        ([tmp_path / "empty"], "empty: contains no run"),
        (
            [broken, vtc],
            "this run is incomplete and cannot be compared; finish it, or leave it out",
        ),
        (["--resume", tmp_path], "sweep.toml"),
        (["--resume", path, "vtc"], ": the stored settings are used; give no other settings"),
    ):
        result = invoke(*arguments, "--result-dir", tmp_path / "runs")
        assert result.exit_code == 2, (arguments, result.output)
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_runs_that_fail_are_exit_code_1_and_say_why(tmp_path):
    result = invoke(
        *("vtc", "fcfs", "--workload", "chat", "--num-programs", 1, "--num-runs", 1),
        *("--set", "engine.max_total_tokens=5", "--result-dir", tmp_path),
    )
    assert result.exit_code == 1
    assert (
        "workload chat: every request is larger than the KV pool of 5 tokens; give a "
        "larger pool or shorter prompts"
    ) in result.stderr
    assert result.stdout == ""


def test_an_interrupted_compare_prints_how_to_resume(tmp_path):
    plan = plan_comparison(["vtc", "fcfs"], {"workload": "chat", "num_programs": 1}, {}, 1)
    interrupted = Interruption()
    interrupted.signum = 2
    with pytest.raises(Interrupted, match="0 of 2 points are finished") as raised:
        carry_out(plan, tmp_path, RunContext(interrupted))
    assert raised.value.exit_code == 130
    assert "Continue with: fairbench compare --resume " in str(raised.value)


def test_a_trace_is_compared_on_the_engine_that_is_named(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{i / 10},client-{i % 2},{200 + i},20" for i in range(40)]
    path.write_text("\n".join(["arrived_at,client,input_tokens,output_tokens", *rows]))
    result = invoke(
        *("fcfs", "vtc", "--trace", path, "--engine", "vllm", "--num-runs", 1, "--json"),
        *("--result-dir", tmp_path / "runs"),
    )
    assert result.exit_code == 0, result.output
    finished = SweepStore(tmp_path / "runs" / "compare-fcfs-vtc").finished().values()
    found = [(cell.summary["scheduler"], cell.summary["num_requests"]) for cell in finished]
    assert sorted(found) == [("fcfs", 40), ("vtc", 40)]
    engines = {read_spec(cell.path / EXPERIMENT).engine for cell in finished}
    assert engines == {"vllm"}


def test_flags_of_traces_need_a_trace(tmp_path):
    result = invoke("fcfs", "vtc", "--trace-format", "azure", "--result-dir", tmp_path)
    assert result.exit_code == 2
    assert "trace_format needs --trace" in result.stderr
