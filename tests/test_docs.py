"""The documents say what the program has."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import fairbench
from fairbench import __version__
from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.schedulers.registry import LOCALS, PAIRS, ROUTERS
from fairbench.sim.run import simulate
from fairbench.workloads.spec import workload_names

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "RUN.md", *sorted((ROOT / "docs").rglob("*.md")))
}
DOCS = "".join(FILES.values())
PROGRAM = get_command(app)
COMMANDS = PROGRAM.commands
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_has_help(name):
    assert f"`fairbench {name}" in DOCS
    assert COMMANDS[name].help
    without = [param.name for param in COMMANDS[name].params if not getattr(param, "help", "")]
    assert without == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_speaks_of_no_python_types(name):
    assert "list[str]" not in CliRunner().invoke(app, [name, "--help"]).stdout


@pytest.mark.parametrize("name", sorted({*PAIRS, *LOCALS, *ROUTERS}))
def test_every_scheduler_is_documented(name):
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_is_documented(name):
    assert f"`{name}`" in DOCS


def test_every_key_of_the_summary_is_documented():
    flags = {"workload": "chat", "scenario": "none", "num_programs": 1}
    summary = simulate(resolve(flags)).summary
    keys = {*summary, *summary["clients"][0]}
    family = re.compile(r"(mean_|median_|std_|p50_|p99_)((?:ttft|tpot|itl|e2el)_ms)")
    documented = set(re.findall(r"`([a-z0-9_]+)`", DOCS))
    for key in list(keys):
        if match := family.fullmatch(key):
            keys = keys - {key} | set(match.groups())
    assert sorted(keys - documented) == []


def test_the_readme_has_two_commands_for_a_fresh_machine():
    commands = re.findall(r"^<!-- ci -->\n```sh\n(.*)\n```$", README, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].endswith("fairbench run --scheduler d2lpm --dp 4")
    assert ".[test]" in commands[1]


def anchors(text):
    """What a link into a document can name: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", FILES)
def test_links_lead_somewhere(name):
    for link in re.findall(r"\]\(([^)]+)\)", FILES[name]):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), link


def parse(words):
    """Raises KeyError for an unknown command, what the program raises for unknown options."""
    command = PROGRAM
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


@pytest.mark.parametrize("name", FILES)
def test_commands_can_be_typed(name):
    for language, block in BLOCK.findall(FILES[name]):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if language == "sh" else []
            if words[:1] == ["fairbench"]:
                parse(words[1:])


def test_python_in_the_readme_calls_what_is_there():
    """Its names are the package's, its keywords the flags of the command of the same name."""
    (block,) = (code for language, code in BLOCK.findall(README) if language == "python")
    calls = [
        node
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("fairbench.")
    ]
    assert len(calls) >= 4
    for call in calls:
        name = ast.unparse(call.func).removeprefix("fairbench.")
        assert callable(getattr(fairbench, name))
        if name in COMMANDS:
            flags = {flag for param in COMMANDS[name].params for flag in param.opts}
            keywords = {f"--{word.arg.replace('_', '-')}" for word in call.keywords}
            assert sorted(keywords - flags) == []


def test_the_readme_lists_every_document():
    guides = [name for name in FILES if name != "README.md" and "results/" not in name]
    assert [name for name in guides if f"[{name}]({name})" not in README] == []


def test_run_md_is_an_index_of_all_results():
    run = FILES["RUN.md"]
    assert len(run.splitlines()) <= 150
    assert [name for name in FILES if "docs/results/" in name and f"({name}" not in run] == []


def linked(row):
    """The text of the results to which a row of the index links. Claims belong to the figures."""
    names = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", row)}
    if "docs/results/figures.md" in names:
        names.add("results/claims.md")
    files = [ROOT / name for name in names if name.startswith(("docs/results/", "results/"))]
    return "".join(path.read_text(encoding="utf-8") for path in files)


def test_numbers_of_the_index_are_those_of_the_results():
    """What a row expects, from 100 up or with a point, stands in the document to which it links."""
    rows = [row for row in FILES["RUN.md"].splitlines() if "](docs/results/" in row]
    number = re.compile(r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3,})(?![\w/])")
    missing = [
        (found, row)
        for row in rows
        if row.count("|") >= 7
        for found in number.findall(row.rsplit("|", 2)[1])
        if found not in linked(row)
    ]
    assert missing == []


def test_the_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == __version__
