"""Text of strangers, made fit for a terminal and for the logs of a CI system."""

from __future__ import annotations

import re

# What GitHub Actions takes for a command of the job's own, behind any blanks: ``::error::text``. A
# table may begin a line with any word of a name. The older ``##[error]`` counts anywhere.
_COMMAND = re.compile(r"(?<!\S)::(?=.*::)|##(?=\[)")


def printable(text: str) -> str:
    """The text with its control characters, line ends included, written as escapes.

    A name may hold sequences that a terminal obeys, and commands of CI systems, which get a
    backslash in their midst.
    """
    if not text.isprintable():
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        text = "".join(escaped)
    return _COMMAND.sub(lambda found: f"{found[0][0]}\\{found[0][1]}", text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, with tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
