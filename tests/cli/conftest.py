"""Helpers shared by the tests of commands."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Return a function that runs a failing command and returns its one-line error.

    The function also checks that the command left no file in the test's directory.
    """
    monkeypatch.chdir(tmp_path)

    def refused(*arguments, code=2):
        before = sorted(tmp_path.rglob("*"))
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert sorted(tmp_path.rglob("*")) == before
        (line,) = result.stderr.rstrip("\n").split("\n")
        assert line.startswith("fairbench: ")
        return line.removeprefix("fairbench: ")

    return refused
