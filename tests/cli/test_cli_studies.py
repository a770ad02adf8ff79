"""Test that studies are found in a checkout, or that one line says how to get them."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fairbench import studies
from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.schedulers.registry import locals_by_name


@pytest.fixture
def no_studies(monkeypatch, tmp_path):
    """Hide the studies, as in an interpreter that runs from a wheel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not one.endswith("studies")])
    for name in [name for name in sys.modules if name.partition(".")[0] == studies.PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(studies, "DIRECTORY", tmp_path / "site-packages" / "fairbench")
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == studies.PACKAGE]:
        del sys.modules[name]


def checkout(folder, text):
    """Make a repository in a folder, whose studies have one module with the given text."""
    package = folder / "studies" / studies.PACKAGE
    package.mkdir(parents=True)
    (folder / "bench" / "fairbench").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "one.py").write_text(text, encoding="utf-8")


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
        ["run", "--scheduler", "vtc", "--set", "vtc.form=artifact"],
    ],
)
def test_without_studies_a_line_names_the_installation(no_studies, tmp_path, arguments):
    (tmp_path / "runs.jsonl").write_text('{"path": "VTC/all_results_mine.jsonl"}\n')
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "needs the package of the studies, which is not" in line
    assert "fairbench-llm[studies]" in line


def test_studies_are_found_in_the_checkout_around_the_current_folder(
    no_studies, tmp_path, monkeypatch
):
    checkout(tmp_path, "answer = 42")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    assert studies.study("one", "plot").answer == 42


def test_studies_of_another_version_are_named(no_studies, tmp_path):
    checkout(tmp_path, "from fairbench.errors import nothing_of_the_kind")
    with pytest.raises(
        UsageError,
        match="plot: the installed studies do not fit this version of fairbench: cannot import",
    ):
        studies.study("one", "plot")


def test_a_typo_in_a_name_is_corrected_with_and_without_the_studies(no_studies):
    result = CliRunner().invoke(app, ["list", "schedulers"])
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if "fairbench-llm[studies]" in line]
    assert [line.split()[0] for line in lines] == [
        name for name, path in locals_by_name().items() if path.startswith(studies.PACKAGE)
    ]


def test_a_typo_in_a_name_is_answered_with_and_without_the_studies(monkeypatch, tmp_path):
    arguments = ["run", "--local", "edf-textbok"]
    found = CliRunner().invoke(app, arguments)
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    absent = CliRunner().invoke(app, arguments)
    assert found.stderr == absent.stderr
    assert "Did you mean 'edf-textbook'?" in found.stderr


def test_a_run_under_a_bundled_scheduler_imports_no_study(tmp_path):
    code = (
        "import sys, fairbench\n"
        "fairbench.run(scheduler='d2lpm', workload='chat', num_programs=1, settings={})\n"
        f"print(*[name for name in sys.modules if name.startswith({studies.PACKAGE!r})])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
