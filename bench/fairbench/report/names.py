"""Names that fit a column, and can still be told apart."""

from __future__ import annotations

from collections.abc import Iterable

CUT = "…"


def cut_apart(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name in at most ``width`` characters: its beginning, or its end if several begin alike.

    Where neither tells them apart, beginnings and ends; those may be the same for several.
    """
    given = tuple(dict.fromkeys(names))
    made: dict[str, str] = {}
    for head in (width - 1, 0, width // 2):
        made = {name: _cut(name, head, width) for name in given}
        if len(set(made.values())) == len(given):
            break
    return made


def _cut(name: str, head: int, width: int) -> str:
    """The first ``head`` characters, and as many of the last as there is room for."""
    if len(name) <= width:
        return name
    return f"{name[:head]}{CUT}{name[len(name) - (width - 1 - head) :]}"


def cut_middle(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters, without its middle where it is longer."""
    return _cut(name, (width - 1) // 2, width)
