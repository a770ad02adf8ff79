"""Test that the studies are found by their entry points, or that an error says how to get them."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from fairbench import doors
from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.schedulers.registry import locals_by_name

PACKAGE = "fairbench_studies"


@pytest.fixture
def no_studies(monkeypatch, tmp_path):
    """Hide the studies, as in an interpreter that runs from a wheel outside a clone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doors, "DIRECTORY", tmp_path / "site-packages" / "fairbench")
    monkeypatch.setattr(doors, "find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not one.endswith("studies")])
    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])


class Hidden:
    """An importer that finds no module of the studies."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == PACKAGE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=PACKAGE)


@pytest.mark.parametrize(
    "arguments",
    [
        ["reproduce", "claims"],
        ["plot", "fig7"],
        ["attack", "--rediscover"],
        ["validate", "runs.jsonl"],
        ["profile", "fit", "runs.jsonl"],
        ["run", "--scheduler", "preble-code"],
        ["run", "--router", "oracle"],
        ["run", "--local", "edf-textbook"],
        ["run", "--set", "dlpm-upstream.quantum=100"],
        ["run", "--gateway", "dlpm-upstream"],
    ],
)
def test_without_studies_a_line_names_the_installation(no_studies, tmp_path, arguments):
    (tmp_path / "runs.jsonl").write_text('{"path": "VTC/all_results_mine.jsonl"}\n')
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert f"needs the package {PACKAGE}, which is not installed" in line
    assert "fairbench-llm[studies]" in line


@pytest.mark.parametrize("place", ["docs", "package"])
def test_studies_are_found_in_a_clone(monkeypatch, tmp_path, place):
    """The clone contains the current folder, or the installed package was made from it."""
    package = tmp_path / "studies" / "fairbench_tales"
    package.mkdir(parents=True)
    (tmp_path / "bench" / "fairbench").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (package / "__init__.py").write_text("ANSWER = 42\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    point = EntryPoint("x", "fairbench_tales:ANSWER", doors.STUDY_GROUP)
    monkeypatch.setattr(doors, "entry_points", lambda group: [point])
    if place == "docs":
        monkeypatch.chdir(tmp_path / "docs")
    else:
        monkeypatch.setattr(doors, "DIRECTORY", tmp_path / "bench" / "fairbench")
    try:
        assert doors.through(doors.STUDY_GROUP, "x") == 42
    finally:
        sys.modules.pop("fairbench_tales", None)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("fairbench_stories.a:B", "x: needs the package fairbench_stories, which is not installed"),
        ("stories.a", "x: needs the package stories, which is not installed$"),
        ("fairbench.nothing:B", "x: fairbench does not fit this version of fairbench: No module"),
        ("fairbench.errors:B", "x: fairbench does not fit this version of fairbench: .*'B'"),
    ],
)
def test_a_door_that_cannot_be_loaded_is_named(monkeypatch, value, line):
    point = EntryPoint("x", value, doors.STUDY_GROUP)
    monkeypatch.setattr(doors, "entry_points", lambda group: [point])
    with pytest.raises(UsageError, match=f"^{line}"):
        doors.through(doors.STUDY_GROUP, "x")


def test_every_registered_study_can_be_loaded():
    for group in (doors.STUDY_GROUP, doors.COMMAND_GROUP):
        for name, point in doors.registered(group).items():
            assert doors.through(group, name) is not None, point
    assert import_module(PACKAGE).COMMAND.group == "Papers"


def test_a_typo_in_a_name_is_corrected_with_and_without_the_studies(no_studies):
    result = CliRunner().invoke(app, ["list", "schedulers"])
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if "fairbench-llm[studies]" in line]
    assert [line.split()[0] for line in lines] == [
        name for name, path in locals_by_name().items() if path.startswith(PACKAGE)
    ]


def test_a_typo_in_a_name_is_answered_without_the_studies(no_studies):
    result = CliRunner().invoke(app, ["run", "--local", "edf-textbok"])
    assert "Did you mean 'edf-textbook'?" in result.stderr


def test_help_lists_the_commands_without_the_studies(no_studies):
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    (line,) = [one for one in result.stdout.splitlines() if "reproduce" in one]
    assert "needs the package" in line


def test_a_run_under_a_bundled_scheduler_imports_no_study(tmp_path):
    code = (
        "import sys, fairbench\n"
        "fairbench.run(scheduler='d2lpm', workload='chat', num_programs=1, settings={})\n"
        f"print(*[name for name in sys.modules if name.startswith({PACKAGE!r})])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
