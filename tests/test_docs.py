"""Test the documents against the program."""

import re
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fairbench import __version__
from fairbench.cli.app import app, load
from fairbench.config.resolve import resolve
from fairbench.metrics.catalogue import CATALOGUE
from fairbench.schedulers.gateway.orders import ORDERS
from fairbench.schedulers.gateway.registry import DETECTORS, policies_by_name
from fairbench.schedulers.registry import PAIRS, locals_by_name, routers_by_name
from fairbench.sim.run import simulate
from fairbench.workloads.spec import workload_names
from fairbench_studies.pages.flag_table import flag_table
from fairbench_studies.pages.metric_table import metric_table
from tests.docs_keys import undocumented

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "RUN.md", *sorted((ROOT / "docs").rglob("*.md")))
}
DOCS = "".join(FILES.values())
COMMANDS = {name: load(name) for name in get_command(app).commands}
# Pages that a reader looks up. RUN.md lists the studies.
READERS = r"docs/(start|guide|concepts|contribute)/"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_has_help(name):
    assert f"`fairbench {name}" in DOCS
    assert COMMANDS[name].help
    without = [param.name for param in COMMANDS[name].params if not getattr(param, "help", "")]
    assert without == []


def test_no_document_has_both_sides_of_a_merge():
    sides = re.compile(r"^(<{7}|={7}|>{7})( .*)?$", re.MULTILINE)
    assert [name for name, text in FILES.items() if sides.search(text)] == []


BULLET = re.compile(r"\s*(?:1\.|[-+*]) ")
BEFORE_A_LIST = re.compile(r"\s*$|\s*(?:\d+\.|[-+*]) |  |[|<`#]")


@pytest.mark.parametrize("name", FILES)
def test_no_line_of_a_paragraph_reads_as_an_item_of_a_list(name):
    """Markdown takes a line that begins with `+ ` or `1. ` for the beginning of a list."""
    lines = BLOCK.sub("", FILES[name]).splitlines()
    wrong = [
        line
        for before, line in pairwise(lines)
        if BULLET.match(line) and not BEFORE_A_LIST.match(before)
    ]
    assert not wrong


@pytest.mark.parametrize("name", COMMANDS)
def test_help_mentions_no_python_types(name):
    assert "list[str]" not in CliRunner().invoke(app, [name, "--help"]).stdout


@pytest.mark.parametrize("name", sorted({*PAIRS, *locals_by_name(), *routers_by_name()}))
def test_every_scheduler_is_documented(name):
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("name", [*policies_by_name(), *DETECTORS, *ORDERS])
def test_every_part_of_a_gateway_is_documented(name):
    assert f"`{name}`" in FILES["docs/guide/gateways.md"] + FILES["docs/reference/gates.md"]


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_is_documented(name):
    assert f"`{name}`" in DOCS


def test_every_key_of_the_summary_is_documented():
    flags = {"workload": "chat", "scenario": "none", "num_programs": 1}
    summary = simulate(resolve(flags)).summary
    assert undocumented({*summary, *summary["clients"][0]}, DOCS) == []


def test_every_metric_is_documented_and_tabled():
    assert undocumented(CATALOGUE, DOCS) == []
    assert metric_table() in FILES["docs/reference/metrics.md"]


def test_every_flag_of_an_experiment_is_tabled():
    assert FILES["docs/reference/flags.md"].endswith(f"\n\n{flag_table()}")


def test_the_readme_has_two_commands_for_a_fresh_machine():
    commands = re.findall(r"^<!-- ci -->\n```sh\n(.*)\n```$", README, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].endswith("fairbench run --scheduler d2lpm --dp 4")
    assert ".[test]" in commands[1]


def anchors(text):
    """Return the anchors of a document: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", FILES)
def test_links_lead_to_existing_places(name):
    for link in re.findall(r"\]\(([^)]+)\)", FILES[name]):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), link


def parse(words):
    """Parse a command line. Unknown commands raise KeyError, unknown options a usage error."""
    command, words = COMMANDS[words[0]], words[1:]
    while hasattr(command, "commands"):
        if words[0] not in command.commands and hasattr(command, "default"):
            words = [command.default, *words]
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


@pytest.mark.parametrize("name", FILES)
def test_named_tests_exist(name):
    for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", FILES[name]):
        code = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", code, re.MULTILINE), f"{path}::{test}"


@pytest.mark.parametrize("name", FILES)
def test_commands_can_be_parsed(name):
    for language, block in BLOCK.findall(FILES[name]):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if language == "sh" else []
            if words[:1] == ["fairbench"]:
                parse(words[1:])


def test_the_reference_lists_every_document():
    reference = FILES["docs/reference/index.md"]
    pages = [name.removeprefix("docs/") for name in FILES if re.match(READERS, name)]
    assert [name for name in pages if f"](../{name})" not in reference] == []
    assert "](docs/reference/index.md)" in README
    assert "](RUN.md)" in README


def test_the_readme_is_short():
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 1_100


def test_the_documents_are_short():
    """The reference is looked up, and what a command prints from results/ is no prose."""
    words = Counter()
    for name, text in FILES.items():
        if found := re.match(r"docs/(\w+)/", name):
            words[found[1]] += len(text.split())
    assert words["appendix"] <= 30_000
    assert sum(words.values()) - words["appendix"] - words["reference"] <= 45_000


def test_no_page_is_too_small_to_be_one():
    small = [name for name, text in FILES.items() if len(text.split()) < 200]
    assert small == ["docs/appendix/index.md"]


def test_no_page_tells_its_own_history():
    told = re.compile(
        r"\b(earlier|older|first|second|previous) version\b|\btoday's\b|\b(is|of) our own\b"
        r"|\bour own (scheduler|router|runs)\b|\bused to be\b|\bno longer (has|is needed|exists)\b",
        re.IGNORECASE,
    )
    pages = {name: text for name, text in FILES.items() if name != "docs/reference/releases.md"}
    assert {name: m[0] for name, text in pages.items() if (m := told.search(text))} == {}


def test_the_changelog_has_this_version_and_later_changes():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert versions[:2] == ["Unreleased", __version__]
    assert len(text.partition(f"## {__version__}")[2].splitlines()) <= 120
