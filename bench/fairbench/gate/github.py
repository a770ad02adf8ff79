"""The outcome of a gate as workflow commands of GitHub Actions, which annotate a run."""

from __future__ import annotations

from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome


def as_commands(outcome: Outcome, *, cannot_tell_fails: bool) -> str:
    """Return an error or warning per check that did not pass, then a notice with the counts."""
    levels = {
        Verdict.FAIL: "error",
        Verdict.CANNOT_TELL: "error" if cannot_tell_fails else "warning",
    }
    lines = []
    for row in outcome.rows:
        if row.verdict in levels:
            text = _data(f"{row.point}: {row.wording()}")
            lines.append(f"::{levels[row.verdict]} title={_property(row.clause)}::{text}")
    lines += [f"::notice title=fairbench::{_data(cause)}" for cause in outcome.causes]
    return "\n".join([*lines, f"::notice title=fairbench::{_data(outcome.summary())}"]) + "\n"


def _data(text: str) -> str:
    """Escape a text as the GitHub runner's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
