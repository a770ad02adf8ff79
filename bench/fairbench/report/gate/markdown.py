"""The outcome of a gate as Markdown, for the summary of a CI job or a comment."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from fairbench.report.gate.judge import Verdict
from fairbench.report.gate.outcome import Outcome, counted

MARKS = {Verdict.PASS: "✅ pass", Verdict.FAIL: "❌ fail", Verdict.CANNOT_TELL: "❔ cannot tell"}


def as_markdown(outcome: Outcome) -> str:
    """A table of all verdicts, and of all changes, folded away."""
    lines = [f"**{_escaped(outcome.summary())}** ({_escaped(outcome.basis)})", ""]
    headings = ("", "point", "clause", "baseline", "current", "change", "why")
    lines += _table(
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
    )
    for point, found in outcome.changes.items():
        title = html.escape(f"{counted(len(found), 'value')} changed: {point}")
        lines += ["", "<details>", f"<summary>{title}</summary>", ""]
        lines += _table(
            ("metric", "baseline", "current", "change"),
            ((one.metric, one.before.text, one.after.text, one.difference) for one in found),
        )
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _line(headings)
    yield _line("---" for _ in headings)
    for row in rows:
        yield _line(map(_escaped, row))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """The text itself, whatever names of clients and workloads have in it."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~#>])", r"\\\1", plain)
