"""The outcome of a gate as Markdown, for the summary of a CI job or a comment."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from fairbench.gate.changes import of_the_cluster
from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome, Row, counted
from fairbench.report.pages.markdown import escaped, table

MARKS = {Verdict.PASS: "✅ pass", Verdict.FAIL: "❌ fail", Verdict.CANNOT_TELL: "❔ cannot tell"}
WORST_FIRST = (Verdict.FAIL, Verdict.CANNOT_TELL, Verdict.PASS)
MOST_CHARACTERS = 60_000  # of the whole text: GitHub cuts a comment off above 65,536
CHECKS = ("", "check", "baseline", "current", "change", "why")
CHANGES = ("metric", "baseline", "current", "change")


def outcome_markdown(outcome: Outcome) -> str:
    """Return a line per configuration, worst first, with folded checks and changes.

    Folded details that would make the text longer than ``MOST_CHARACTERS`` are left out, the last
    ones first, and the text says how many.
    """
    lines = [f"**{escaped(outcome.summary())}** ({escaped(outcome.basis)})", ""]
    if outcome.causes:
        lines += [*(f"- {escaped(cause)}" for cause in outcome.causes), ""]
    points = _worst_first(outcome.rows)
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


def _worst_first(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows by point, the worst row of each first, and order the groups by that row."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(row.point, []).append(row)
    groups = [sorted(group, key=_badness) for group in points.values()]
    return sorted(groups, key=lambda group: _badness(group[0]))


def _badness(row: Row) -> int:
    return WORST_FIRST.index(row.verdict)


def _line(group: Sequence[Row]) -> tuple[str, str, str, str]:
    """Return the verdict of a point, its name, passed checks, and the worst check."""
    worst = group[0]
    passed = sum(row.verdict is Verdict.PASS for row in group)
    said = "" if worst.verdict is Verdict.PASS else f"{worst.clause}: {worst.wording()}"
    return MARKS[worst.verdict], worst.point, f"{passed} of {len(group)} passed", said


def _details(outcome: Outcome, points: Iterable[Sequence[Row]]) -> Iterator[str]:
    """Yield folded tables: the checks of each point, then the changes at points."""
    for group in points:
        cells = (
            (MARKS[row.verdict], row.clause, row.before, row.after, row.change, row.reason)
            for row in group
        )
        yield _folded(f"{counted(len(group), 'check')}: {group[0].point}", CHECKS, cells)
    for point, found in outcome.changes.items():
        shown = of_the_cluster(found)
        changes = ((one.metric, *one.texts, one.difference) for one in shown)
        rest = f", {len(found) - len(shown)} of single clients" if len(shown) < len(found) else ""
        title = f"{counted(len(found), 'value')} changed{rest}: {point}"
        yield _folded(title, CHANGES, changes)


def _folded(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["", "<details>", f"<summary>{html.escape(title)}</summary>", ""]
    lines += [*table(headings, rows, escaped), "", "</details>"]
    return "\n".join(lines) + "\n"
