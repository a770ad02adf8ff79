"""Untrusted text, made safe for a terminal and for the logs of a CI system."""

from __future__ import annotations

import re

# GitHub Actions takes ``::error::text`` behind any blanks for a command of the job's own. A
# table may begin a line with any word of a name. The older ``##[error]`` counts anywhere.
_COMMAND = re.compile(r"(?<!\S)::(?=.*::)|##(?=\[)")


def printable(text: str) -> str:
    """Return the text with its control characters, line ends included, written as escapes.

    A name may contain terminal escape sequences. A name may also contain commands of CI systems,
    which are broken up by a backslash.
    """
    if not text.isprintable():
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        text = "".join(escaped)
    return _COMMAND.sub(lambda found: f"{found[0][0]}\\{found[0][1]}", text)


def printable_lines(text: str) -> str:
    """Apply ``printable`` to each line of a text, keeping its tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
