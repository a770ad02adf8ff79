"""Test that hostile names and texts are safe on a terminal and in a CI job's log."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import printable, printable_lines
from fairbench.results.store import read_json

HOSTILE = [
    "a\n::error::boom",
    "::error::boom",
    "a ::error file=x::boom",
    "a##[error]boom",
    "b\x1b[31m",
    "c\r##[error]",
    "d\u2028::warning::x",
    "e\x9b2J",
]


def is_command(line):
    """Tell whether GitHub's runner reads a line as a command.

    A command has ``::`` at its start, or ``##[`` anywhere.
    """
    line = line.lstrip()
    return (line.startswith("::") and "::" in line[2:]) or "##[" in line


SHORT = st.text(alphabet=st.sampled_from([*":#[e \n\t\x1b\r"]))


@given(st.text() | SHORT)
def test_a_name_becomes_printable_and_contains_no_command(text):
    shown = printable(text)
    assert shown.isprintable()
    words = shown.split(" ")
    assert not any(is_command(" ".join(words[start:])) for start in range(len(words)))


@given(SHORT)
def test_no_line_of_a_text_becomes_a_command(text):
    for line in printable_lines(text).split("\n"):
        assert not is_command(line)
        assert "\x1b" not in line


@pytest.mark.parametrize("text", ["ann", "client-0", "::1", "a: b", "#1 [x]", "http://[::1]:80"])
def test_ordinary_names_are_unchanged(text):
    assert printable(text) == text


def test_line_breaks_and_tabs_are_unchanged():
    assert printable_lines("Traceback:\n\tx: 1\n") == "Traceback:\n\tx: 1\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_client_name_in_foreign_records_cannot_write_a_command_into_a_log(name, tmp_path):
    """A table row that began with ``::error`` would fail a job of GitHub Actions."""
    times = {"start": 0, "first_token": 0.5, "end": 1, "input_tokens": 10, "output_tokens": 5}
    records = [{"client": client, **times} for client in (name, "other")]
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    result = CliRunner().invoke(app, ["score", str(path)])
    assert result.exit_code == 0, result.output
    assert harmless(result.output)
    assert printable(name) in result.stdout


def harmless(output):
    lines = output.split("\n")
    return not any(map(is_command, lines)) and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stored_summary_cannot_write_a_command_into_a_log(name, tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"clients": {name: {"note": name}}, "list": [name, 1, None]}))
    content = read_json(path)
    assert list(content["clients"]) == [printable(name)]
    assert harmless(content["list"][0])
    assert harmless(content["clients"][printable(name)]["note"])
    assert content["list"][1:] == [1, None]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_an_error_message_cannot_write_a_command_into_a_log(name):
    result = CliRunner().invoke(app, ["run", "--workload", name])
    assert result.exit_code == 2
    assert harmless(result.stderr)
