"""Test ``fairbench plot`` and ``fairbench reproduce`` end to end."""

import json
import platform
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.results.store import SweepStore
from fairbench_studies.dlpm.central.store import QUICK_ROUNDS, TIMED_QUEUES, TIMED_WORKERS

pytest.importorskip("seaborn", reason="figures need the plot extra")

PATIENCE_S = 300  # a long limit, because machines are busy


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(path):
    """Return every file below a folder, with its modification time."""
    return {str(file): file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Run a sweep of figure 8 with few programs."""
    parent = tmp_path_factory.mktemp("runs")
    tiny = ("--num-programs", 2, "--num-runs", 1, "--name", "fig8-quick")
    result = invoke("sweep", "fig8", *tiny, "--result-dir", parent)
    assert result.exit_code == 0, result.output
    return parent / "fig8-quick"


def test_plot_draws_from_a_store_and_changes_nothing_in_it(swept, tmp_path):
    before = written(swept)
    result = invoke("plot", "fig8", "--from", swept, "--output-dir", tmp_path, "--format", "svg")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'fig8.svg'}\n{tmp_path / 'fig8.csv'}\n"
    assert written(swept) == before
    picture = (tmp_path / "fig8.svg").read_text()
    assert "simulated on a10g-24gb/llama-3.2-3b/tp1/sglang-e2e; seed 0" in picture
    assert "D²LPM" in picture


def test_foreign_runs_are_not_drawn_as_the_figure(swept, tmp_path):
    result = invoke("plot", "fig9", "--from", swept, "--output-dir", tmp_path)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "on chat s1 dp 2 is not part of the sweep fig9; name the folder of" in result.stderr
    assert result.stderr.endswith(f"To draw a picture of these runs, use fairbench plot {swept}\n")


@pytest.mark.slow
def test_plot_draws_a_directory_of_the_user(swept, tmp_path):
    table = tmp_path / "out" / "table.tex"
    flags = ["--output-dir", tmp_path / "out", "--format", "svg,pdf", "--table", table]
    result = invoke("plot", swept, *flags)
    assert result.exit_code == 0, result.output
    kinds = ("bars", "tradeoff", "cdf")
    names = {f"{swept.name}-{kind}.{suffix}" for kind in kinds for suffix in ("svg", "pdf")}
    assert {path.name for path in table.parent.iterdir()} == {*names, "table.tex"}
    assert {line.rpartition("/")[2] for line in result.output.split()} == {*names, "table.tex"}
    assert r"\begin{tabular}" in table.read_text(encoding="utf-8")


def test_plot_finds_the_runs_of_reproduce(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "runs").mkdir(parents=True)
    (tmp_path / "results" / "runs" / "fig8-quick").symlink_to(swept)
    result = invoke("plot", "fig8", "--format", "svg")
    assert result.exit_code == 0, result.output
    assert result.stdout == "plots/fig8.svg\nplots/fig8.csv\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plot", "fig2"], "unknown figure 'fig2'"),
        (["plot", "fig8", "--format", "svg,jpg"], "unknown --format 'jpg': choose from pdf, png"),
        (
            ["plot", "fig8", "--from", "nowhere"],
            "nowhere: no such directory; `fairbench reproduce fig8` creates it",
        ),
        (["plot", "fig8", "--table", "t.tex"], "--table t.tex needs a directory of runs, and"),
        (["plot", ".", "--table", "t.csv"], "--table t.csv: must end in .tex"),
        (
            ["plot", ".", "--from", "here"],
            (". is a directory: --from and --preset can be given only with the name of a figure"),
        ),
        (["plot", "all", "--from", "here"], "--from here holds the runs of one figure: give the"),
        (["reproduce", "fig2"], "unknown figure 'fig2': choose from all, artifact, claims"),
        (["reproduce", "fig8", "--format", ""], "--format '': must not be empty"),
        (
            ["reproduce", "vtc", "--preset", "vtc-paper"],
            (
                "--preset vtc-paper can be given only with frontier, or with figures or "
                "claims of the DLPM paper, not with vtc"
            ),
        ),
        (
            ["reproduce", "claims", "--preset", "vtc-paper"],
            "--preset vtc-paper: there is no figure of the DLPM paper for this preset",
        ),
        (["reproduce", "fig8", "--map"], "--map can be given only with claims, not with fig8"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fairbench: {complaint}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_reproduce_does_not_touch_the_store_of_another_sweep(swept, tmp_path):
    before = written(swept)
    folders = ("--result-dir", swept.parent, "--output-dir", tmp_path)
    result = invoke("reproduce", "fig8", "--quick", *folders)
    assert result.exit_code == 2
    assert f"{swept}: holds another sweep" in result.stderr
    assert written(swept) == before


def timings(points, **changes):
    basis = {
        "timing_profile": "a100-80gb/llama-3.1-8b/tp1/measured-sglang",
        "host": f"{platform.machine()}, Python {platform.python_version()}",
        "seed": 0,
        "rounds": QUICK_ROUNDS,
    }
    return json.dumps(basis | {"points": points} | changes)


def timed_point(workers, waiting):
    parts = ("synchronisation_ms", "update_ms", "match_ms", "dispatch_ms", "decode_step_ms")
    return {"workers": workers, "waiting": waiting} | dict.fromkeys(parts, 1.0)


def test_reproduce_times_only_missing_points(tmp_path):
    every = [(w, q) for w in TIMED_WORKERS for q in TIMED_QUEUES]
    kept = [timed_point(*pair) for pair in every if pair != (1, 50)]
    (tmp_path / "fig4-quick").mkdir()
    file = tmp_path / "fig4-quick" / "timings.json"
    file.write_text(timings(kept))
    folders = ("--result-dir", tmp_path, "--output-dir", tmp_path / "plots", "--format", "svg")
    result = invoke("reproduce", "fig4", "--quick", *folders)
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())["points"]
    assert found[:-1] == kept
    assert (found[-1]["workers"], found[-1]["waiting"]) == (1, 50)
    assert found[-1]["match_ms"] > 0
    assert (tmp_path / "plots" / "fig4.svg").exists()


def test_timings_of_another_machine_are_not_mixed(tmp_path):
    (tmp_path / "fig4-quick").mkdir()
    file = tmp_path / "fig4-quick" / "timings.json"
    file.write_text(timings([timed_point(1, 50)], host="another"))
    result = invoke("reproduce", "fig4", "--quick", "--result-dir", tmp_path)
    assert result.exit_code == 2
    assert "holds timings from another machine" in result.stderr
    assert json.loads(file.read_text())["points"] == [timed_point(1, 50)]


@pytest.mark.slow
def test_reproduce_resumes_and_never_runs_twice(tmp_path):
    arguments = ["reproduce", "fig12", "--quick", "--format", "svg", "--result-dir",
                 str(tmp_path / "runs"), "--output-dir", str(tmp_path / "plots")]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "fairbench", *arguments], stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            store = SweepStore(tmp_path / "runs" / "fig12-quick")
            end = time.monotonic() + PATIENCE_S
            while not ((store.path / "index.json").exists() and store.finished()):
                assert time.monotonic() < end
                time.sleep(0.05)
            one.send_signal(signal.SIGINT)
            _, stderr = one.communicate(timeout=PATIENCE_S)
        finally:
            one.kill()
    assert one.returncode == 130
    assert stderr.endswith(f"fairbench: interrupted; finished runs are in {store.path}\n")
    assert not (tmp_path / "plots").exists()
    kept = [written(run.path) for run in store.finished().values()]
    assert 1 <= len(kept) < 3
    assert invoke(*arguments).exit_code == 0
    after = written(store.runs)
    assert len(store.finished()) == 3
    assert all(run.items() <= after.items() for run in kept)
    assert (tmp_path / "plots" / "fig12.svg").exists()
    assert invoke(*arguments).exit_code == 0
    assert written(store.runs) == after
