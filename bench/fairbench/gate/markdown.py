"""The outcome of a gate as Markdown, for the summary of a CI job or a comment."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome, Row, counted
from fairbench.report.pages.markdown import escaped, table

MARKS = {Verdict.PASS: "✅ pass", Verdict.FAIL: "❌ fail", Verdict.CANNOT_TELL: "❔ cannot tell"}
WORST_FIRST = (Verdict.FAIL, Verdict.CANNOT_TELL, Verdict.PASS)
MOST_CHARACTERS = 60_000  # of the whole text: GitHub cuts a comment off above 65,536
LEAST_WHOLE = 100.0  # from which on a number has no fraction
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
    before, after = _short(worst.before, worst.after)
    wording = replace(worst, before=before, after=after).wording()
    said = "" if worst.verdict is Verdict.PASS else f"{worst.clause}: {wording}"
    return MARKS[worst.verdict], worst.point, f"{passed} of {len(group)} passed", said


def _details(outcome: Outcome, points: Iterable[Sequence[Row]]) -> Iterator[str]:
    """Yield folded tables: the checks of each point, then the changes at points."""
    for group in points:
        cells = (
            (
                *(MARKS[row.verdict], row.clause),
                *_short(row.before, row.after),
                *(row.change, row.reason),
            )
            for row in group
        )
        yield _folded(f"{counted(len(group), 'check')}: {group[0].point}", CHECKS, cells)
    for point, found in outcome.changes.items():
        changes = (
            (one.metric, *_short(one.before.text, one.after.text), one.difference) for one in found
        )
        yield _folded(f"{counted(len(found), 'value')} changed: {point}", CHANGES, changes)


def _short(before: str, after: str) -> tuple[str, str]:
    """Return two values with three digits, or with all digits if they would become equal."""
    shown = _three_digits(before), _three_digits(after)
    return (before, after) if shown[0] == shown[1] and before != after else shown


def _three_digits(text: str) -> str:
    """Return a number with a fraction in three digits; other texts and bounds stay as they are."""
    if not re.fullmatch(r"-?[\d,]+\.\d+", text):
        return text
    value = float(text.replace(",", ""))
    return f"{value:,.0f}" if abs(value) >= LEAST_WHOLE else f"{value:.3g}"


def _folded(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["", "<details>", f"<summary>{html.escape(title)}</summary>", ""]
    lines += [*table(headings, rows, escaped), "", "</details>"]
    return "\n".join(lines) + "\n"
