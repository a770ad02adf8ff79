"""A comparison as a LaTeX table for a paper (package booktabs)."""

from __future__ import annotations

from itertools import groupby

from fairbench.metrics.metric import Column
from fairbench.report.comparison_table import (
    DEMAND_LIMITED,
    bounded,
    comparison_columns,
    ends_of,
    of_several_seeds,
    provenance,
)
from fairbench.report.numbers import UNDEFINED
from fairbench.results.comparison import SchedulerResults

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
    columns = [one for one in comparison_columns(cells) if _known(cells, one)]
    head = " & ".join(["", *(escaped(column.title) for column in columns)])
    lines = [
        f"% {provenance(cells)}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        rf"{head} \\",
    ]
    for place, rows in groupby(cells, lambda cell: cell.place):
        here = list(rows)
        limited = r" $\sim$" if any(cell.demand_limited for cell in here) else ""
        named = f"{escaped(place)}{limited}"
        lines += [r"\midrule", rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{{named}}} \\"]
        for cell in here:
            texts = [escaped(cell.scheduler), *(_cell(cell, one) for one in columns)]
            lines.append(rf"{' & '.join(texts)} \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if any(cell.demand_limited for cell in cells):
        lines.append(f"% sim: {DEMAND_LIMITED.removeprefix('~ ')}")
    if of_several_seeds(cells):
        lines.append("% brackets: 95% intervals of the means")
    return "\n".join(lines) + "\n"


def _known(cells: list[SchedulerResults], column: Column) -> bool:
    return any(cell.combined.get(column.key) is not None for cell in cells)


def _cell(cell: SchedulerResults, column: Column) -> str:
    found = cell.combined.get(column.key)
    if found is None:
        return UNDEFINED
    ends = ends_of(found, column, len(cell.combined["seeds"])).replace("-", "--")
    return escaped(bounded(found, column)) + (rf" [{escaped(ends)}]" if ends else "")


def escaped(text: str) -> str:
    """Return text in which LaTeX's special characters are escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
