"""Colours, marks and dashes of schedulers in all figures and pages.

Colours are distinct for colour-blind readers (after Okabe and Ito). Marks are distinct in grey
print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Swatch(NamedTuple):
    """The colour, mark and dashes with which a series is drawn.

    ``colour`` is used on white paper, and ``on_dark`` on dark screens. ``marker`` is matplotlib's
    name of the mark, and ``shape`` is SVG code that draws the mark around the origin. ``dashes``
    are the lengths of dashes and gaps, in line widths; if empty, the line is solid.
    """

    colour: str
    on_dark: str
    marker: str
    shape: str
    dashes: tuple[float, ...]


VERMILION = Swatch(
    "#d55e00", "#f58742", "s", '<rect x="-4" y="-4" width="8" height="8"/>', (3.7, 1.6)
)
BLUE = Swatch("#0072b2", "#56b4e9", "^", '<path d="M0-5L5 4H-5Z"/>', (6.4, 1.6, 1, 1.6))
GREEN = Swatch("#009e73", "#2cc998", "D", '<path d="M0-5.5L5.5 0L0 5.5L-5.5 0Z"/>', (1, 1.65))
PURPLE = Swatch("#a5507f", "#dd92bb", "v", '<path d="M0 5L5-4H-5Z"/>', (8, 2))
ORANGE = Swatch(
    "#e69f00", "#f0d040", "X", '<path d="M-4-4L4 4M-4 4L4-4"/>', (3, 1.2, 1, 1.2, 1, 1.2)
)
BLACK = Swatch("#1c1c1c", "#e0e0dc", "o", '<circle r="4.5"/>', ())
VIOLET = Swatch(
    "#7a1fe0", "#8f6bff", "*", '<path d="M0-6L1.8-1.8L6 0L1.8 1.8L0 6L-1.8 1.8L-6 0L-1.8-1.8Z"/>',
    (10, 1.6, 1, 1.6),
)  # fmt: skip

BROWN = Swatch(
    "#781800", "#a89060", "P", '<path d="M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z"/>', (12, 1.2)
)

SERIES = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, BLACK, VIOLET, BROWN)
"""The styles of a figure's series, in the order in which they are assigned to clients."""

SCHEDULERS = {
    "lpm": VERMILION,
    "vtc": BLUE,
    "preble": GREEN,
    "preble-code": BROWN,
    "d2lpm": PURPLE,
    "fcfs": ORANGE,
    "dlpm": BLACK,
    "fair-finish": VIOLET,
}


def scheduler_series(names: Sequence[str]) -> list[int]:
    """Return each name's index in ``SERIES``.

    Each known scheduler has a fixed index, and thus a fixed colour. The first name that starts with
    ``dlpm``, such as ``dlpm dlpm.quantum=5000``, gets the index of DLPM. An unknown scheduler gets
    an index that no known scheduler in ``names`` uses.
    """
    found: dict[str, int] = {}
    for name in names:
        own = SCHEDULERS.get(name.partition(" ")[0])
        if own is not None and SERIES.index(own) not in found.values():
            found[name] = SERIES.index(own)
    left = [number for number in range(len(SERIES)) if number not in found.values()]
    for name in names:
        if name not in found:
            found[name] = left.pop(0) if left else len(found) % len(SERIES)
    return [found[name] for name in names]


def style_sheet() -> str:
    """Return the colours as CSS variables ``--c0``, ``--c1`` and so on, for both colour modes."""
    light, dark = (
        " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in ([one.colour for one in SERIES], [one.on_dark for one in SERIES])
    )
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{\n  :root {{ {dark} }}\n}}\n"
    )
