"""A LaTeX table of compared schedulers that fits into one column of a two-column paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import column_of, known_key
from fairbench.metrics.metric import Column, Display
from fairbench.report.comparison_table import (
    DEMAND_LIMITED,
    any_limited,
    comparison_columns,
    of_several_seeds,
    provenance,
    shown,
    tail_of,
    unfinished,
)
from fairbench.results.comparison import SchedulerResults, by_place

RATE, SHARE = "service_rate_tok_s", "min_entitlement_best_ratio"
COLUMN_PT = 229.0  # A column of LaTeX's two-column article class has this width in points.
GAP_PT = 6.0  # Two columns of the table are this many points apart: twice LaTeX's tabcolsep.
# Width of an em in points, in LaTeX's footnotesize (for means) and scriptsize (for intervals).
EM_PT, SMALL_EM_PT = 8.5, 8.0
# The widths of letters are upper bounds in em for the typeface Computer Modern.
NARROW, WIDE, CAPITAL, DIGIT, OTHER = 0.28, 0.84, 0.79, 0.5, 0.56
SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    ">": "$>$",
    "<": "$<$",
}

Cells = Sequence[SchedulerResults]


def latex_table(cells: Cells, keys: Sequence[str] = ()) -> str:
    """Return a LaTeX ``tabular`` of metrics, with 95% intervals below the means.

    Without ``keys``, the table has as many metrics as fit into a column of a two-column paper.
    Raises UsageError for an unknown metric, and for a metric without a value.
    """
    columns = table_columns(cells, keys)
    lines = [
        f"% {provenance(cells)}",
        *(f"% {line}" for line in unfinished(cells)),
        f"% At most {width_pt(cells, columns):.0f} pt wide; a column of a paper with two columns "
        f"has about {COLUMN_PT:.0f} pt.",
        r"% Needs \usepackage{booktabs}.",
        r"{\footnotesize\setlength{\tabcolsep}{3pt}%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(columns)}@{{}}}}",
        r"\toprule",
        rf"{' & '.join(['', *map(_heading, columns)])} \\",
    ]
    for place, here in by_place(cells).items():
        limited = r" $\sim$" if any_limited(here) else ""
        named = f"{escaped(place)}{limited}"
        lines += [r"\midrule", rf"\multicolumn{{{len(columns) + 1}}}{{@{{}}l@{{}}}}{{{named}}} \\"]
        lines += [line for cell in here for line in _latex_rows(cell, columns)]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if any_limited(cells):
        lines.append(f"% sim: {DEMAND_LIMITED.removeprefix('~ ')}")
    if of_several_seeds(cells):
        lines.append("% below the means: 95% intervals of the means")
    return "\n".join(lines) + "\n"


def table_columns(cells: Cells, keys: Sequence[str]) -> list[Column]:
    """Return the columns of the metrics ``keys``, or by default of the metrics that fit a page."""
    known = {key for cell in cells for key, one in cell.combined.items() if one is not None}
    if keys:
        chosen = [known_key(key) for key in keys]
        for key in chosen:
            if key not in known:
                raise UsageError(f"--columns {key}: no run has a value of this metric")
        return [column_of(key, Display.COMPARISON) for key in dict.fromkeys(chosen)]
    columns = [column for column in comparison_columns(cells) if column.key in known]
    main = (RATE, f"victim_p{tail_of(cells)}_s", SHARE)
    kept: list[Column] = []
    for column in sorted(columns, key=lambda one: one.key not in main):
        if width_pt(cells, [*kept, column]) <= COLUMN_PT:
            kept.append(column)
    return [column for column in columns if column in kept] or columns[:1]


def width_pt(cells: Cells, columns: Sequence[Column]) -> float:
    """Return an upper bound on a table's width, in points."""
    names = max(_text_pt(cell.scheduler, EM_PT) for cell in cells)
    places = max(_text_pt(f"{cell.place} ~", EM_PT) for cell in cells)
    widths = []
    for column in columns:
        values = [shown(cell.combined.get(column.key), column, cell.planned_runs) for cell in cells]
        lines = [*column.heading.split("\n"), *(one.text for one in values)]
        ends = [_text_pt(_dashed(one.ends), SMALL_EM_PT) for one in values]
        widths.append(max(*ends, *(_text_pt(line, EM_PT) for line in lines)))
    return max(names + sum(widths) + GAP_PT * len(columns), places)


def _text_pt(text: str, em_pt: float) -> float:
    return em_pt * sum(map(_em, text))


def _em(letter: str) -> float:
    if letter.isdigit():
        return DIGIT
    if letter in " .,:;'ijl[]()|!":
        return NARROW if letter != " " else 1.2 * NARROW
    if letter in "mw%MW><~@&":
        return WIDE
    return CAPITAL if letter.isupper() else OTHER


def _heading(column: Column) -> str:
    lines = r"\\".join(map(escaped, column.heading.split("\n")))
    return rf"\shortstack[r]{{{lines}}}"


def _latex_rows(cell: SchedulerResults, columns: Sequence[Column]) -> Iterator[str]:
    """Yield the table row of a scheduler's means and, for several seeds, a row of intervals."""
    found = [shown(cell.combined.get(one.key), one, cell.planned_runs) for one in columns]
    yield rf"{' & '.join([escaped(cell.scheduler), *(escaped(one.text) for one in found)])} \\"
    if any(one.ends for one in found):
        ends = (rf"\scriptsize {escaped(_dashed(one.ends))}" if one.ends else "" for one in found)
        yield rf"{' & '.join(['', *ends])} \\"


def _dashed(ends: str) -> str:
    return ends.replace("-", "--")


def escaped(text: str) -> str:
    """Escape LaTeX's special characters in a text."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
