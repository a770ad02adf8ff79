"""Functions that save a study's figure, and the figure's numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import writing
from fairbench_papers.style import save_in
from fairbench_studies.kit.rows import write_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(
    figure: Figure,
    output: Path,
    stem: str,
    formats: Sequence[str],
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> list[Path]:
    """Save the figure as ``STEM.FORMAT`` in each format, and ``rows`` as ``STEM.csv``.

    Raises UsageError if a picture cannot be written.
    """
    pictures = save_in(figure, output, stem, formats)
    if rows is None:
        return pictures
    table = output / f"{stem}.csv"
    with writing(output, "output_dir"):
        write_rows(table, rows)
    return [*pictures, table]
