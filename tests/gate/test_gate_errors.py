"""Test that a gate reports a failing run as an error, and not as a regression."""

import re
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config import identity
from fairbench.config.sweep import make_sweep, points
from fairbench.results.experiments import point_names
from fairbench.results.store import SweepStore
from fairbench.schedulers import registry
from tests.gate.gate_helpers import TINY, store

EXPERIMENT = """
router = "round-robin"
local = "LOCAL"
workload = "chat"
scenario = "none"
num_programs = 1
"""
SCHEDULER = '''
from dataclasses import dataclass

from fairbench.schedulers.base import LocalScheduler


class Mine(LocalScheduler):
    """Serves clients in order."""

    name = "gate-errors-mine"

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params):
        self.params = params

    def select(self, view, now_s):
        while waiting := view.clients():
            if not (yield view.oldest(min(waiting))):
                return
'''
FAULTS = {
    "select": ("while waiting", "raise ValueError('no a < b')\n        while waiting"),
    "start": ("self.params = params", "1 / 0"),
    "end": ("    def select", "    def on_finish(self, request):\n        {}[7]\n\n    def select"),
}


def invoke(*arguments):
    registry._with_plugins.cache_clear()
    try:
        return CliRunner().invoke(app, ["baseline", *map(str, arguments)])
    finally:
        registry._with_plugins.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Store a baseline of a user's scheduler and of a bundled scheduler."""
    parent = tmp_path_factory.mktemp("errors")
    (parent / "mine.py").write_text(SCHEDULER)
    for name, local in (("mine", "gate-errors-mine"), ("ours", "vtc")):
        (parent / "base" / name).mkdir(parents=True)
        text = EXPERIMENT.replace("LOCAL", local)
        (parent / "base" / name / "experiment.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRBENCH_SCHEDULERS", str(parent / "mine.py"))
        assert invoke("update", parent / "base").exit_code == 0
    return parent


def check(folder, fault, *options, monkeypatch):
    file = folder / f"{fault}.py"
    file.write_text(SCHEDULER.replace(*FAULTS[fault]))
    monkeypatch.setenv("FAIRBENCH_SCHEDULERS", str(file))
    return invoke("check", folder / "base", "--disable-tqdm", *options)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("select", "ValueError: no a < b"), ("start", "ZeroDivisionError"), ("end", "KeyError: 7")],
)
def test_a_scheduler_that_raises_is_an_error_in_junit(folder, fault, said, monkeypatch):
    result = check(folder, fault, "--format", "junit", monkeypatch=monkeypatch)
    assert result.exit_code == 3, result.output
    assert said in result.stderr
    suites = ET.fromstring(result.stdout)
    assert (suites.attrib["errors"], suites.attrib["failures"]) == ("1", "0")
    cases = {case.attrib["name"]: case for case in suites.iter("testcase")}
    assert said in cases["run"].find("error").attrib["message"]
    assert list(cases["no value may change"]) == []  # the other scheduler is judged


def test_github_gets_an_annotation_and_a_table(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = check(folder, "select", "--format", "github", monkeypatch=monkeypatch)
    assert result.exit_code == 3
    assert re.search(r"^::error title=run::chat none .*ValueError: no a < b", result.stdout, re.M)
    assert "💥 error" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_tables_name_the_error_and_a_regression_beside_it(folder, monkeypatch):
    clause = ("--fail-if", "completed:-0")
    result = check(folder, "end", "--format", "markdown", *clause, monkeypatch=monkeypatch)
    assert "**2 points, 2 checks: 1 pass, 0 FAIL, 0 inconclusive, 1 ERROR**" in result.stdout
    result = check(folder, "end", monkeypatch=monkeypatch)
    assert re.search(r"run +ERROR", result.stdout)


def test_an_update_with_a_run_that_fails_stores_nothing(folder, monkeypatch):
    before = (folder / "base" / "mine" / "summary.json").read_bytes()
    (folder / "update.py").write_text(SCHEDULER.replace(*FAULTS["select"]))
    monkeypatch.setenv("FAIRBENCH_SCHEDULERS", str(folder / "update.py"))
    assert invoke("update", folder / "base").exit_code == 1
    assert (folder / "base" / "mine" / "summary.json").read_bytes() == before


def sweep(parent, failed=()):
    """Store a sweep over two schedulers, in which the schedulers in ``failed`` have no run."""
    swept = make_sweep({"name": "swept", "base": TINY, "grid": [{"scheduler": ["vtc", "fcfs"]}]})
    specs = points(swept)
    made = SweepStore.create(parent, swept, specs)
    for spec, name in zip(specs, point_names(specs), strict=True):
        if spec.scheduler in failed:
            made.save_failure(identity(spec), name, "a worker process died", "")
        else:
            store(made.runs / spec.scheduler, spec={"scheduler": spec.scheduler})
    return made.path


@pytest.mark.parametrize(
    ("failed", "checks"),
    [
        (((), ("vtc",)), 1),
        ((("vtc",), ()), 1),
        ((("vtc",), ("vtc",)), 1),
        (((), ("vtc", "fcfs")), 0),
    ],
)
def test_a_failed_run_of_a_sweep_makes_the_check_incomplete(tmp_path, failed, checks):
    paths = [sweep(tmp_path / str(n), names) for n, names in enumerate(failed)]
    result = CliRunner().invoke(app, ["check", *map(str, paths)])
    assert result.exit_code == 3, result.output
    assert re.search(r"vtc, seed 0\n  run +ERROR\n    failed in", result.stdout)
    errors = len({*failed[0], *failed[1]})
    assert f"{checks} pass, 0 FAIL, 0 inconclusive, {errors} ERROR" in result.output


def test_a_whole_sweep_passes(tmp_path):
    paths = [sweep(tmp_path / name) for name in "ab"]
    result = CliRunner().invoke(app, ["check", *map(str, paths)])
    assert (result.exit_code, "2 pass, 0 FAIL" in result.stdout) == (0, True), result.output


@pytest.mark.parametrize("form", ["junit", "github"])
def test_wrong_usage_is_an_error_of_the_format_and_exit_code_2(tmp_path, form):
    result = invoke("check", tmp_path, "--format", form)
    assert result.exit_code == 2
    assert "must be a baseline" in result.stdout
    assert result.stdout.startswith("<?xml" if form == "junit" else "::error ")
