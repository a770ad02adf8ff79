"""Test that stored runs notice a changed engine, on a stand-in that has only an engine's files."""

import sys

import pytest
from typer.testing import CliRunner

from fairbench import execute
from fairbench.cli.app import app
from fairbench.config.sweep import make_sweep, points
from fairbench.errors import DataError, UsageError
from fairbench.execute.simulations import jobs_left, outdated_runs
from fairbench.results.comparison import ComparedRun, compare_sweep, experiment_of, sides_of
from fairbench.results.store import SweepStore
from fairbench.results.summary import basis, code_name, is_same_code
from fairbench_engines.replica.engine_code import SGLangCode, VLLMCode
from tests.results.comparison_helpers import stored

TINY = {"workload": "chat", "scenario": "none", "num_programs": 1}
POLICIES = ["fcfs", "lpm", "mine"]


class StandIn:
    """A Python whose SGLang consists of two files that cannot be imported."""

    def __init__(self, folder):
        self.python = folder / "bin" / "python"
        managers = folder / "site" / "sglang" / "srt" / "managers"
        self.policy, self.other = managers / "schedule_policy.py", managers.parent / "server.py"
        managers.mkdir(parents=True)
        (managers.parents[1] / "__init__.py").write_text("raise ImportError('of an engine')\n")
        self.policy.write_text("ORDER = 1\n")
        self.other.write_text("PORT = 1\n")
        self.release("0.5.23")
        self.python.parent.mkdir()
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH={folder / "site"} exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    def release(self, version):
        facts = self.policy.parents[3] / "sglang-1.dist-info" / "METADATA"
        facts.parent.mkdir(exist_ok=True)
        facts.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")

    def code(self):
        return SGLangCode.installed(str(self.python))


@pytest.fixture
def engine(tmp_path):
    return StandIn(tmp_path / "fork")


class CodeSweep:
    """A sweep of three policies in the stand-in's code. Its results are stored, not simulated."""

    def __init__(self, engine, parent):
        self.engine = engine
        self.flags = {**TINY, "engine_code": str(engine.python), "router": "round-robin"}
        made = make_sweep({"name": "mine", "base": self.flags, "grid": [{"local": POLICIES}]})
        self.specs = points(made)
        self.store = SweepStore.create(parent, made, self.specs)

    def finish(self, *policies):
        """Store the runs of some policies as decided by the present code."""
        for policy in policies:
            code = {**self.engine.code(), "policy": policy}
            flags = {**self.flags, "local": policy}
            stored(self.store.runs, flags, scheduler=policy, engine_code=code)

    def left(self):
        jobs = jobs_left(self.store, self.specs, with_alone=False)
        return [job.name.split(",")[1].strip() for job in jobs]


@pytest.fixture
def sweep(engine, tmp_path):
    return CodeSweep(engine, tmp_path / "results")


def test_the_installed_code_is_read_without_an_import(engine):
    first = engine.code()
    assert (first["engine"], first["version"], first["commit"]) == ("sglang", "0.5.23", None)
    assert engine.code() == first
    engine.other.write_text("PORT = 2\n")
    assert is_same_code(engine.code(), first)
    engine.policy.write_text("ORDER = 2\n")
    assert not is_same_code(engine.code(), first)
    with pytest.raises(UsageError, match="cannot import vllm: No module named 'vllm'"):
        VLLMCode.installed(str(engine.python))


def test_a_sweep_in_unchanged_code_goes_on(sweep):
    assert len(sweep.left()) == 3
    sweep.finish("fcfs", "mine")
    sweep.engine.other.write_text("PORT = 2\n")  # this file decides nothing
    assert sweep.left() == ["lpm"]


def test_without_stored_runs_no_python_is_asked(sweep):
    sweep.engine.python.unlink()
    assert len(sweep.left()) == 3


CHANGES = {
    "an edited file": lambda engine: engine.policy.write_text("ORDER = 2\n"),
    "a new file": lambda engine: engine.policy.with_name("mine.py").write_text("ORDER = 2\n"),
    "another release": lambda engine: engine.release("0.5.24"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_sweep_in_changed_code_is_not_resumed(sweep, change):
    sweep.finish("fcfs", "mine")
    before = code_name(sweep.engine.code())
    change(sweep.engine)
    after = code_name(sweep.engine.code())
    assert before != after
    done = CliRunner().invoke(app, ["sweep", "--resume", str(sweep.store.path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"fairbench: {sweep.store.path}: 2 finished runs were decided by {before}, and "
        f"{sweep.engine.python} now has {after}; restore the engine code with which these "
        "runs were made, or begin again in another directory\n"
    )
    assert len(sweep.store.finished()) == 2
    done = CliRunner().invoke(app, ["compare", "--resume", str(sweep.store.path)])
    assert done.exit_code == 2
    assert "2 finished runs were decided by" in done.stderr


def test_an_absent_python_is_named(sweep):
    sweep.finish("fcfs")
    sweep.engine.python.unlink()
    with pytest.raises(UsageError, match="no such program; give the path of a Python"):
        sweep.left()


def test_runs_of_other_code_are_not_reused(sweep, tmp_path):
    sweep.finish("fcfs")
    sweep.engine.policy.write_text("ORDER = 2\n")
    sweep.finish("mine")
    (outdated,) = outdated_runs(sweep.store.finished(), sweep.specs)
    other = CodeSweep(sweep.engine, tmp_path / "others")
    other.store.take_from(sweep.store, [outdated.identity])
    assert [run.summary["scheduler"] for run in other.store.finished().values()] == ["mine"]
    assert len(other.left()) == 2


def test_a_reused_sweep_prints_which_runs_run_again(sweep, tmp_path, monkeypatch):
    sweep.finish(*POLICIES)
    sweep.engine.policy.write_text("ORDER = 2\n")
    ran = []
    monkeypatch.setattr(execute, "run_sweep", lambda store, *_: ran.append(store.path) or 1 / 0)
    words = [str(sweep.store.file), "--reuse", str(sweep.store.path), "--disable-tqdm"]
    done = CliRunner().invoke(app, ["sweep", *words, "--result-dir", str(tmp_path / "others")])
    assert isinstance(done.exception, ZeroDivisionError)
    assert done.stderr.startswith(
        f"fairbench: {sweep.store.path}: 3 runs are not reused: decided by "
    )
    assert done.stderr.count("\n") == 1
    assert SweepStore(ran[0]).finished() == {}


def test_runs_of_a_code_that_changed_meanwhile_are_not_compared(sweep):
    sweep.finish("fcfs")
    sweep.engine.policy.write_text("ORDER = 2\n")
    sweep.finish("mine")
    with pytest.raises(DataError, match=r"used sglang .* with the same Python; keep"):
        compare_sweep(sweep.store.path)


def test_seeds_of_different_code_are_no_repeats(sweep, tmp_path):
    runs = []

    def sides(seed):
        flags = {**sweep.flags, "local": "mine", "seed": seed}
        run = stored(tmp_path, flags, engine_code=sweep.engine.code())
        runs.append(ComparedRun(run, experiment_of(run), run.summary))
        return sides_of(runs)

    sides(0)
    (side,) = sides(1)
    assert basis(side.combined).endswith(f"decided by {code_name(sweep.engine.code())}")
    sweep.engine.policy.write_text("ORDER = 2\n")
    with pytest.raises(DataError, match="keep the runs of one engine code, or compare the dir"):
        sides(2)
