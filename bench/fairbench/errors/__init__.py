"""The exceptions that fairbench raises on purpose, and texts that are safe to print.

FairbenchError
├── UsageError         the user asked for something impossible (exit code 2)
│   └── DataError      a file that the user named cannot be used (exit code 2)
├── ProgramFailed      the cluster refused a request, so its program cannot go on
└── RunFailed          a run or a gate failed (exit code 1)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Self


class FairbenchError(Exception):
    """The base class of all exceptions below."""


class UsageError(FairbenchError):
    """A wrong name, value or combination. The message is one line and names the field.

    ``keys`` are the keys and settings of an experiment that are wrong, empty if unknown.
    """

    keys: frozenset[str] = frozenset()

    def of(self, *keys: str) -> Self:
        """Return the error with these keys, unless it has some."""
        self.keys = self.keys or frozenset(keys)
        return self

    def is_of_file(self, said: Collection[str]) -> bool:
        """Return whether a file is to blame, over which flags have ``said`` other keys."""
        return self.keys.isdisjoint(said) if self.keys else not said


class DataError(UsageError):
    """An unreadable or wrong-schema file. The message names file, line and field."""


class ProgramFailed(FairbenchError):
    """A request of the program was refused (it can never fit the KV pool)."""


class RunFailed(FairbenchError):
    """The run started and could not be completed."""


@contextmanager
def about(*keys: str) -> Iterator[None]:
    """A UsageError inside is about these keys of an experiment, unless it names others."""
    try:
        yield
    except UsageError as error:
        error.of(*keys)
        raise


def unknown_name(what: str, name: str, allowed: Iterable[str]) -> UsageError:
    """Return the error for an unknown name: the name, what is allowed, the nearest match."""
    names = sorted(allowed)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {what} {name!r}: choose from {', '.join(names)}.{hint}")


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
