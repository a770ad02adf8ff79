"""Test RUN.md against the studies, and the reference's Python against the package."""

import ast
import re
from pathlib import Path

from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from tests.docs_quantities import CODE, NUMBER, QUANTITY, lines_of, unfound

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
RUN = (ROOT / "RUN.md").read_text(encoding="utf-8")
STUDIES = ("docs/studies/", "docs/appendix/", "results/")


def test_run_md_is_short_and_leads_to_every_result():
    assert len(RUN.splitlines()) <= 150
    results = (ROOT / "docs" / "studies").glob("*.md")
    names = [path.relative_to(ROOT).as_posix() for path in results]
    assert len(names) >= 5
    assert [name for name in names if f"({name}" not in RUN] == []


def linked(row):
    """Return the studies to which a row of the index links, with appendices and claims."""
    names = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", row)}
    if "docs/studies/figures.md" in names:
        names.add("results/claims.md")
    names |= {name.replace("/studies/", "/appendix/") for name in names}
    names |= {name.replace("/appendix/", "/studies/") for name in names}
    files = [ROOT / name for name in names if name.startswith(STUDIES)]
    return "".join(path.read_text(encoding="utf-8") for path in files if path.exists())


def results_of_the_index():
    """Return each result in RUN.md, with the lines of the pages to which its row links."""
    rows = [row for row in RUN.splitlines() if "](docs/" in row and row.count("|") == 6]
    assert len(rows) >= 20
    return [(row.rsplit("|", 2)[1], lines_of(linked(row))) for row in rows]


def test_numbers_of_the_index_match_the_results():
    found = {result: unfound(result, lines) for result, lines in results_of_the_index()}
    assert {result: numbers for result, numbers in found.items() if numbers} == {}


def test_a_changed_digit_of_the_index_is_noticed():
    """Nine of ten changes are noticed. In the others, the page has the new number, too."""
    told = {}
    for result, lines in results_of_the_index():
        for found in QUANTITY.finditer(CODE.sub(lambda code: " " * len(code[0]), result)):
            for number in re.finditer(NUMBER, found[0]):
                at = found.start() + number.end() - 1
                other = result[:at] + str((int(result[at]) + 1) % 10) + result[at + 1 :]
                told[other] = bool(unfound(other, lines))
    assert len(told) >= 80
    assert sum(told.values()) >= 0.9 * len(told), [text for text, seen in told.items() if not seen]


def test_python_in_the_reference_calls_existing_functions():
    """The names are the package's, and the keywords are flags of the command of the same name."""
    block = "\n".join(re.findall(r"^```python\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL))
    calls = [
        node
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("fairbench.")
    ]
    assert len(calls) >= 4
    for call in calls:
        name = ast.unparse(call.func).removeprefix("fairbench.")
        assert callable(getattr(fairbench, name))
        if call.keywords:
            usage = CliRunner().invoke(app, [name, "--help"]).stdout
            flags = set(re.findall(r"--[a-z-]+", usage))
            keywords = {f"--{word.arg.replace('_', '-')}" for word in call.keywords}
            assert sorted(keywords - flags) == []


def test_completion_is_offered_as_in_the_readme():
    assert "fairbench --install-completion" in README
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
