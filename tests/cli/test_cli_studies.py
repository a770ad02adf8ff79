"""The studies: found in a checkout, or else one line that says how to get them."""

import sys

import pytest
from typer.testing import CliRunner

from fairbench.cli import studies
from fairbench.cli.app import app
from fairbench.errors import UsageError


@pytest.fixture
def no_studies(monkeypatch, tmp_path):
    """A fresh interpreter's view of a wheel: no studies beside it, none imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not one.endswith("studies")])
    for name in [name for name in sys.modules if name.partition(".")[0] == studies.PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "site-packages" / "fairbench" / "__init__.py"
    monkeypatch.setattr(studies.fairbench, "__file__", str(package))
    monkeypatch.setattr(studies, "find_spec", lambda name: None)


def checkout(folder, text):
    """A repository in a folder, whose studies have one module of that text."""
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
    ],
)
def test_without_studies_a_line_says_how_to_get_them(no_studies, tmp_path, arguments):
    (tmp_path / "runs.jsonl").write_text('{"path": "VTC/all_results_mine.jsonl"}\n')
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "needs the package of the studies, which is not" in line
    assert "fairbench-llm[studies]" in line


def test_the_checkout_that_the_current_folder_is_in_has_them(no_studies, tmp_path, monkeypatch):
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
