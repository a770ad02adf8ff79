"""Test RUN.md against the studies, and the reference's Python against the package."""

import ast
import re
from pathlib import Path

from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
RUN = (ROOT / "RUN.md").read_text(encoding="utf-8")
STUDIES = ("docs/studies/", "docs/appendix/", "results/")
# As the tables write them: 1,234 and 0.99, and whole numbers from 100 up.
NUMBER = re.compile(r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3,})(?![\w/])")


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
    files = [ROOT / name for name in names if name.startswith(STUDIES)]
    return "".join(path.read_text(encoding="utf-8") for path in files if path.exists())


def test_numbers_of_the_index_match_the_results():
    rows = [row for row in RUN.splitlines() if "](docs/" in row and row.count("|") == 6]
    assert len(rows) >= 20
    missing = [
        (number, row)
        for row in rows
        for number in NUMBER.findall(row.rsplit("|", 2)[1])
        if number not in linked(row)
    ]
    assert missing == []


def test_python_in_the_reference_calls_existing_functions():
    """The names are the package's, and the keywords are flags of the command of the same name."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)
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
