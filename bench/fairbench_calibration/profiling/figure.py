"""A figure of a timing profile: measured and predicted times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench_papers.style import caption, drawn_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Points(NamedTuple):
    """Iterations of one kind, with sizes (such as tokens), measured times and predicted times."""

    label: str
    size: NDArray[np.float64]
    source_ms: NDArray[np.float64]
    fitted_ms: NDArray[np.float64]


def draw_profile(points: list[Points], path: Path, title: str) -> None:
    """Draw a timing profile's measured and predicted times to a file.

    Raises UsageError if the figure cannot be drawn or written.
    """
    with drawn_to(path, 2, 7.0, 2.8) as (figure, axes):
        _times(axes[0], points)
        _errors(axes[1], points)
        caption(figure, "", title, axes[0], columns=3)


def _times(panel: Axes, points: list[Points]) -> None:
    for one, marker in zip(points, "o^s", strict=False):
        panel.plot(one.source_ms, one.fitted_ms, marker, label=one.label, markersize=2.5, alpha=0.6)
    ends = [min(one.source_ms.min() for one in points), max(one.source_ms.max() for one in points)]
    panel.plot(ends, ends, color="0.3", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("source (ms)")
    panel.set_ylabel("fitted (ms)")


def _errors(panel: Axes, points: list[Points]) -> None:
    for one, marker in zip(points, "o^s", strict=False):
        off = 100 * (one.fitted_ms / one.source_ms - 1)
        panel.plot(one.size, off, marker, markersize=2.5, alpha=0.6)
    panel.axhline(0, color="0.3", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("tokens of the iteration")
    panel.set_ylabel("error of the fit (%)")
