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
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
# A quantity with its unit, a count or a range, outside of code: 1,234, 3.3 s, 94%, 4 of 4, 1 to 2%.
QUANTITY = re.compile(
    rf"(?<![\w.,/-])({NUMBER}%?(?: (?:of|to) {NUMBER})?(?:%|x| s\b| min\b)?)(?![\w/])"
)
# What a table's header or rows say where their cells are numbers of this unit.
UNITS = {"%": "%|share|rate|throughput|times", "s": r"\bs\b|seconds", "min": "min", "x": "x|times"}
WORD = re.compile(r"[a-z][a-z-]{3,}")
FILLERS = "with that than from under them they when where each have most more other"
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


def words_of(text):
    """Return the beginnings of the words that say what a number is about."""
    return {word[:6] for word in WORD.findall(text.lower()) if word not in FILLERS.split()}


def lines_of(text):
    """Return each paragraph or row, what is said above the row, and the words of its table."""
    found, heading, caption, header = [], "", "", ""
    for line in re.sub(r"\n(?![|\n#-])", " ", text).splitlines():
        heading = line if line.startswith("#") else heading
        if not line.startswith("|"):
            header, caption = "", caption if line.strip()[:4] in ("", "<!--") else line
        header = header or line * line.startswith("|")
        found.append((line, f"{header} {caption}", words_of(f"{line} {header} {heading}")))
    return found


def unfound(result, lines):
    """Return the quantities of a result that no line says about the same thing.

    The line names what the result names in code, last before the quantity or next after it. It
    shares two words with the quantity's clause, or one word and another quantity. In a table
    quantities are cells, of which the header has the unit; a percentage may be a fraction.
    """
    plain = CODE.sub(lambda code: " " * len(code[0]), result)
    missing = []
    for clause in re.finditer(r"[^;|]+", plain):
        about, quantities = words_of(clause[0]), list(QUANTITY.finditer(plain, *clause.span()))
        for one in quantities:
            names = NAME.findall(result[: one.start()])[-1:] + NAME.findall(result[one.end() :])[:1]
            said = [line for line in lines if _says(one[0], names, *line[:2])]
            others = [other[0] for other in quantities if other is not one]
            if not any(_is_about(about, others, *line) for line in said):
                missing.append(one[0])
    return missing


def _is_about(about, others, line, header, words):
    shared = len(about & words)
    beside = any(_says(other, [], line, header) for other in others)
    return shared >= min(1 if beside else 2, len(about))


def _says(quantity, names, line, header):
    if names and not any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", line) for one in names):
        return False
    part = f"0.{quantity[:-1]:0>2}" if quantity[-1] == "%" else quantity
    if re.search(rf"(?<![\w.,-])({re.escape(quantity)}|{re.escape(part)})(?!\w|[.,]\d)", line):
        return True
    unit = re.sub(r"[\d., ]|of|to", "", quantity)[-1:]
    if unit and (line[:1] != "|" or not re.search(UNITS[unit], header + line)):
        return False
    cells = {cell.strip(" *%") for cell in re.split(r"[|/±()]|, | of | to | by ", line)}
    return part in cells or set(re.findall(NUMBER, quantity)) <= cells


def results_of_the_index():
    """Return each result of RUN.md and the lines of the pages to which its row links."""
    rows = [row for row in RUN.splitlines() if "](docs/" in row and row.count("|") == 6]
    assert len(rows) >= 20
    return [(row.rsplit("|", 2)[1], lines_of(linked(row))) for row in rows]


def test_numbers_of_the_index_match_the_results():
    found = {result: unfound(result, lines) for result, lines in results_of_the_index()}
    assert {result: numbers for result, numbers in found.items() if numbers} == {}


def test_a_changed_digit_of_the_index_is_noticed():
    """Nine in ten are: for the others the page has that number too, about the same thing."""
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
