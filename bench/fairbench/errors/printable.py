"""Text of strangers, made fit for a terminal and for the logs of a CI system."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with its control characters, line ends included, written as escapes.

    A name may hold sequences that a terminal obeys, or a line that begins with ``::error``, which
    GitHub Actions takes for a command of the job's own.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, none of which is then a command."""
    return "\n".join(_no_command(printable(line)) for line in text.splitlines())


def _no_command(line: str) -> str:
    return f" {line}" if line.lstrip().startswith(("::", "##[")) else line
