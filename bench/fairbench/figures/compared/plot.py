"""Pictures of a directory of runs, or of cells in memory, as files or figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairbench.errors import UsageError, unknown_name
from fairbench.figures.compared.draw import (
    against_parameter,
    bars,
    cdfs,
    distribution,
    swept,
    tradeoff,
)
from fairbench.figures.style import check_drawable, paper_style, save_in
from fairbench.metrics.metric import Column
from fairbench.report.comparison_table import (
    DEMAND_LIMITED,
    any_limited,
    comparison_columns,
    of_several_seeds,
    provenance,
    shown,
)
from fairbench.results.comparison import SchedulerResults, by_place

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS: Mapping[str, Callable[[Sequence[SchedulerResults]], Figure]] = {
    "bars": bars,
    "tradeoff": tradeoff,
    "cdf": cdfs,
    "parameter": against_parameter,
}


def drawn(cells: Sequence[SchedulerResults], kind: str) -> Figure:
    """Return one picture. Raises UsageError for an unknown kind, or without the plot extra."""
    if kind not in KINDS:
        raise unknown_name("kind of picture", kind, KINDS)
    if kind == "cdf" and not _have_latencies(cells):
        raise UsageError("kind 'cdf': needs result_dir, because latencies are read from saved runs")
    if kind == "parameter" and not swept(cells):
        raise UsageError("kind 'parameter': needs a sweep over one parameter of a scheduler")
    check_drawable()
    with paper_style():
        return KINDS[kind](cells)


def write_pictures(
    cells: Sequence[SchedulerResults], output: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    """Write every kind of picture; return the files. Raises UsageError if one cannot be written."""
    check_drawable()
    written: list[Path] = []
    for kind, draw in KINDS.items():
        if kind == "cdf" and not _have_latencies(cells):
            continue
        if kind == "parameter" and not swept(cells):
            continue
        with paper_style():
            written += save_in(draw(cells), output, f"{name}-{kind}", formats)
    return written


def _have_latencies(cells: Sequence[SchedulerResults]) -> bool:
    return any(distribution(cell) is not None for cell in cells)


SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    ">": "$>$",
    "<": "$<$",
}


def latex_table(cells: list[SchedulerResults]) -> str:
    """Return a ``tabular`` of the compared metrics, with 95% intervals in brackets."""
    known = {key for cell in cells for key, one in cell.combined.items() if one is not None}
    columns = [column for column in comparison_columns(cells) if column.key in known]
    head = " & ".join(["", *(escaped(column.title) for column in columns)])
    lines = [
        f"% {provenance(cells)}",
        r"% Needs \usepackage{booktabs}.",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        rf"{head} \\",
    ]
    for place, here in by_place(cells).items():
        limited = r" $\sim$" if any_limited(here) else ""
        named = f"{escaped(place)}{limited}"
        lines += [r"\midrule", rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{{named}}} \\"]
        for cell in here:
            texts = [escaped(cell.scheduler), *(_cell(cell, one) for one in columns)]
            lines.append(rf"{' & '.join(texts)} \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if any_limited(cells):
        lines.append(f"% sim: {DEMAND_LIMITED.removeprefix('~ ')}")
    if of_several_seeds(cells):
        lines.append("% brackets: 95% intervals of the means")
    return "\n".join(lines) + "\n"


def _cell(cell: SchedulerResults, column: Column) -> str:
    found = shown(cell.combined.get(column.key), column, len(cell.combined["seeds"]))
    ends = escaped(found.ends.replace("-", "--"))
    return escaped(found.text) + (rf" [{ends}]" if ends else "")


def escaped(text: str) -> str:
    """Return text in which LaTeX's special characters are escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
