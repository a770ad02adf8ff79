"""The outcome of a gate as Markdown, for the summary of a CI job or a comment."""

from __future__ import annotations

import html

from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome, counted
from fairbench.report.pages.markdown import escaped, table

MARKS = {Verdict.PASS: "✅ pass", Verdict.FAIL: "❌ fail", Verdict.CANNOT_TELL: "❔ cannot tell"}


def outcome_markdown(outcome: Outcome) -> str:
    """A table of all verdicts, and of all changes, folded away."""
    lines = [f"**{escaped(outcome.summary())}** ({escaped(outcome.basis)})", ""]
    if outcome.causes:
        lines += [*(f"- {escaped(cause)}" for cause in outcome.causes), ""]
    headings = ("", "point", "clause", "baseline", "current", "change", "why")
    lines += table(
        headings,
        (
            (
                MARKS[row.verdict],
                row.point,
                row.clause,
                row.before,
                row.after,
                row.change,
                row.reason,
            )
            for row in outcome.rows
        ),
        escaped,
    )
    for point, found in outcome.changes.items():
        title = html.escape(f"{counted(len(found), 'value')} changed: {point}")
        lines += ["", "<details>", f"<summary>{title}</summary>", ""]
        lines += table(
            ("metric", "baseline", "current", "change"),
            ((one.metric, one.before.text, one.after.text, one.difference) for one in found),
            escaped,
        )
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"
