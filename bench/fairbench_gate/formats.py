"""Output of a check: a table, Markdown, JUnit XML or GitHub annotations."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.pages.markdown import escaped, table
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_gate.clauses import Verdict
from fairbench_gate.outcome import Change, ClauseRow, Outcome, counted, of_the_cluster

STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "yellow"}
STYLES[Verdict.ERROR] = STYLES[Verdict.FAIL]
HEADINGS = ("baseline", "current", "change")


def outcome_text(outcome: Outcome, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the outcome as lines of text, with or without ANSI colours."""
    return printed(_render(outcome), colour=colour, width=width)


def _render(outcome: Outcome) -> RenderableType:
    blocks: list[RenderableType] = [Text(f"{outcome.answer()}.", style="bold"), Text()]
    blocks += [Text(outcome.basis)]
    blocks += [Text(cause, style="yellow") for cause in outcome.causes]
    blocks += [Text(), _verdicts(outcome)]
    for point, found in outcome.changes.items():
        blocks += [Text(), Text(f"changed, {point}", style="bold"), changes_table(found)]
    return Group(*blocks, Text(), Text(outcome.summary()))


def _verdicts(outcome: Outcome) -> Table:
    table = plain_table("", *HEADINGS, "", gap=1)
    for point, rows in groupby(outcome.rows, lambda row: row.point):
        table.add_row(Text(point, style="bold"))
        for row in rows:
            texts = (f"  {row.clause}", row.before, row.after, row.change)
            table.add_row(*map(Text, texts), Text(row.verdict, style=STYLES[row.verdict]))
            if row.reason:
                table.add_row(Text(f"    {row.reason}", style="dim"))
    return table


def changes_table(found: Sequence[Change]) -> RenderableType:
    """Return a table of the values that changed in one experiment.

    If cluster-wide metrics changed, the table does not list changed metrics of single clients, but
    states their number.
    """
    shown = of_the_cluster(found)
    table = plain_table("", *HEADINGS, "", gap=1)
    for change in shown:
        texts = (change.metric, *change.texts, change.difference, change.direction)
        table.add_row(*map(Text, texts))
    if rest := len(found) - len(shown):
        return Group(table, Text(f"and {counted(rest, 'value')} of single clients"))
    return table


MARKS = {
    Verdict.PASS: "✅ pass",
    Verdict.FAIL: "❌ fail",
    Verdict.INCONCLUSIVE: "❔ inconclusive",
    Verdict.ERROR: "💥 error",
}
WORST_FIRST = (Verdict.ERROR, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
MOST_CHARACTERS = 60_000  # GitHub refuses comments above 65,536 characters
CHECKS = ("", "check", "baseline", "current", "change", "why")
CHANGES = ("metric", "baseline", "current", "change", "")


def outcome_markdown(outcome: Outcome) -> str:
    """Return the outcome as Markdown: a row per configuration, the worst first, and folded details.

    If the text exceeds ``MOST_CHARACTERS``, the last details are omitted, and the text ends with
    their number.
    """
    lines = [f"**{escaped(outcome.summary())}** ({escaped(outcome.basis)})", ""]
    if outcome.causes:
        lines += [*(f"- {escaped(cause)}" for cause in outcome.causes), ""]
    groups: dict[str, list[ClauseRow]] = {}
    for row in sorted(outcome.rows, key=lambda one: WORST_FIRST.index(one.verdict)):
        groups.setdefault(row.point, []).append(row)
    points = list(groups.values())
    lines += table(("", "configuration", "checks", "worst"), map(_line, points), escaped)
    text, left_out = "\n".join(lines) + "\n", 0
    for details in _details(outcome, points):
        if len(text) + len(details) > MOST_CHARACTERS - 200:
            left_out += 1
        else:
            text += details
    if left_out:
        text += f"\n{counted(left_out, 'folded table')} omitted because of their length.\n"
    return text


def _line(group: Sequence[ClauseRow]) -> tuple[str, str, str, str]:
    worst = group[0]
    passed = sum(row.verdict is Verdict.PASS for row in group)
    said = "" if worst.verdict is Verdict.PASS else f"{worst.clause}: {worst.wording()}"
    return MARKS[worst.verdict], worst.point, f"{passed} of {len(group)} passed", said


def _details(outcome: Outcome, points: Iterable[Sequence[ClauseRow]]) -> Iterator[str]:
    """Yield collapsible tables: each experiment's checks, then all other changes of metrics."""
    for group in points:
        cells = (
            (MARKS[row.verdict], row.clause, row.before, row.after, row.change, row.reason)
            for row in group
        )
        yield _folded(f"{counted(len(group), 'check')}: {group[0].point}", CHECKS, cells)
    for point, found in outcome.changes.items():
        shown = of_the_cluster(found)
        changes = ((one.metric, *one.texts, one.difference, one.direction) for one in shown)
        rest = f", {len(found) - len(shown)} of single clients" if len(shown) < len(found) else ""
        worse = sum(one.direction == "worse" for one in shown)
        title = f"{counted(len(found), 'value')} changed{rest}, {worse} worse: {point}"
        yield _folded(title, CHANGES, changes)


def _folded(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["", "<details>", f"<summary>{html.escape(title)}</summary>", ""]
    lines += [*table(headings, rows, escaped), "", "</details>"]
    return "\n".join(lines) + "\n"


def as_commands(outcome: Outcome, *, inconclusive_fails: bool) -> str:
    """Return the outcome of the gate as GitHub annotations.

    Each check that did not pass becomes an error or a warning. A notice states the number of checks
    with each verdict.
    """
    levels = {
        Verdict.ERROR: "error",
        Verdict.FAIL: "error",
        Verdict.INCONCLUSIVE: "error" if inconclusive_fails else "warning",
    }
    lines = []
    for row in outcome.rows:
        if row.verdict in levels:
            title = _data(row.clause).replace(":", "%3A").replace(",", "%2C")
            text = _data(f"{row.point}: {row.wording()}")
            lines.append(f"::{levels[row.verdict]} title={title}::{text}")
    lines += [f"::notice title=fairbench::{_data(cause)}" for cause in outcome.causes]
    return "\n".join([*lines, f"::notice title=fairbench::{_data(outcome.summary())}"]) + "\n"


def _data(text: str) -> str:
    """Escape a text for a GitHub annotation, as GitHub's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


SUITE = "fairbench check"
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(outcome: Outcome, *, inconclusive_fails: bool) -> str:
    """Return JUnit XML with a test case for each metric limit and experiment.

    An inconclusive check counts as failed if ``inconclusive_fails`` is true, and otherwise as
    skipped.
    """
    failed = outcome.rows_with(Verdict.FAIL)
    unknown = outcome.rows_with(Verdict.INCONCLUSIVE)
    counts = {
        "tests": str(len(outcome.rows)),
        "failures": str(failed + unknown if inconclusive_fails else failed),
        "errors": str(outcome.rows_with(Verdict.ERROR)),
        "skipped": "0" if inconclusive_fails else str(unknown),
    }
    suites = ET.Element("testsuites", {"name": SUITE, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, "time": "0", **counts})
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", {"name": "basis", "value": _clean(outcome.basis)})
    for cause in outcome.causes:
        ET.SubElement(properties, "property", {"name": "cause", "value": _clean(cause)})
    for row in outcome.rows:
        names = {"classname": _clean(row.point), "name": _clean(row.clause), "time": "0"}
        case = ET.SubElement(suite, "testcase", names)
        if row.verdict is Verdict.PASS:
            continue
        skipped = row.verdict is Verdict.INCONCLUSIVE and not inconclusive_fails
        message = {"message": _clean(row.wording())}
        broken = "error" if row.verdict is Verdict.ERROR else "failure"
        ET.SubElement(case, "skipped" if skipped else broken, message)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Return a text without characters that XML 1.0 cannot represent."""
    return NOT_XML.sub("?", text)
