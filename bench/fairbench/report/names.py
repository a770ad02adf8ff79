"""Names shortened to a column's width so that they stay distinct."""

from __future__ import annotations

import re
from collections.abc import Iterable

CUT = "…"


def cut_apart(names: Iterable[str], width: int) -> dict[str, str]:
    """Shorten each name to at most ``width`` characters, in the middle.

    Where that leaves several alike, their ends are kept instead, or else their beginnings. Names
    that differ only in the middle may still come out alike.
    """
    given = tuple(dict.fromkeys(names))
    tried = [
        {name: _cut(name, head, width) for name in given} for head in (width // 2, 0, width - 1)
    ]
    return next((made for made in tried if len(set(made.values())) == len(given)), tried[0])


def _cut(name: str, head: int, width: int) -> str:
    """Return the first ``head`` characters, and as many of the last as fit."""
    if len(name) <= width:
        return name
    return f"{name[:head]}{CUT}{name[len(name) - (width - 1 - head) :]}"


def cut_middle(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters, without its middle if it is longer."""
    return _cut(name, (width - 1) // 2, width)


def folded_name(name: str, width: int) -> str:
    """Return a name in lines of at most ``width`` characters, which end after a space or a ``+``.

    A part that is longer than a line is cut anywhere.
    """
    lines, line = [], ""
    for part in re.split(r"(?<=[ +/])", name):
        if line and len((line + part).rstrip()) > width:
            lines.append(line)
            line = ""
        line += part
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return "\n".join(one.rstrip() for one in [*lines, line])
