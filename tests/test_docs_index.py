"""Test RUN.md against the studies, and the reference's Python against the package."""

import ast
import re
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
RUN = (ROOT / "RUN.md").read_text(encoding="utf-8")
STUDIES = ("docs/studies/", "docs/appendix/", "results/")
# A quantity with its unit, or a count out of another, outside of code: 1,234, 0.99, 3.3 s, 94%, 4
# of 4.
QUANTITY = re.compile(
    r"(?<![\w.,/-])(\d+ of \d+|(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?:%|x| s\b| min\b)?)(?![\w/])"
)
NAME = re.compile(r"`([\w+-]+)`")
CODE = re.compile(r"`[^`]*`|\b[A-Z]+\d+\b|\bs[12]\b")


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


def unfound(result, text):
    """Return the quantities of a result that no line of the text has beside the same name.

    The name is in code, the last before the quantity or the next after it. In a table, quantities
    are cells and the header has the unit; a percentage may be a fraction.
    """
    plain = CODE.sub(lambda code: " " * len(code[0]), result)
    found = [
        (one[0], NAME.findall(result[: one.start()])[-1:] + NAME.findall(result[one.end() :])[:1])
        for one in QUANTITY.finditer(plain)
    ]
    lines = re.sub(r"\n(?![|\n#-])", " ", text).splitlines()  # a paragraph counts as one line
    return [one for one, names in found if not any(map(partial(_says, one, names), lines))]


def _says(quantity, names, line):
    if names and not any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", line) for one in names):
        return False
    if re.search(rf"(?<![\w.,-]){re.escape(quantity)}(?!\w|[.,]\d)", line):
        return True
    cells = {cell.strip(" *%") for cell in re.split(r"[|/±]| of | to ", line)}
    numbers = set(re.findall(r"[\d.,]+", quantity))
    return numbers <= cells or (quantity[-1] == "%" and f"0.{quantity[:-1]:0>2}" in cells)


def test_numbers_of_the_index_match_the_results():
    rows = [row for row in RUN.splitlines() if "](docs/" in row and row.count("|") == 6]
    assert len(rows) >= 20
    found = {row: unfound(row.rsplit("|", 2)[1], linked(row)) for row in rows}
    assert {row: numbers for row, numbers in found.items() if numbers} == {}


def test_a_changed_digit_of_the_index_is_noticed():
    """Three of four changes are noticed: for the others, the page has that number too, beside the
    same name.
    """
    rows = [row for row in RUN.splitlines() if "](docs/" in row and row.count("|") == 6]
    told = []
    for row in rows:
        result, text = row.rsplit("|", 2)[1], linked(row)
        for found in QUANTITY.finditer(CODE.sub(lambda code: " " * len(code[0]), result)):
            at = max(at for at in range(*found.span()) if result[at].isdigit())
            other = result[:at] + str((int(result[at]) + 1) % 10) + result[at + 1 :]
            told.append(bool(unfound(other, text)))
    assert len(told) >= 80
    assert sum(told) >= 0.7 * len(told)


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
