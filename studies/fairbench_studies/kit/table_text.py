"""Functions that format the numbers of runs for Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor
from pathlib import Path

from fairbench.metrics.shown_percentiles import shown_tail
from fairbench.results.significance import t_interval
from fairbench_studies.kit.rows import Row

BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def as_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Columns of numbers are right-aligned."""
    body = [list(row) for row in rows]
    marks = [
        "--:" if all(map(is_number, column)) and any(column) else "---"
        for column in zip(*body, strict=True)
    ]
    lines = [header, None, *body]
    return "".join(
        f"|{'|'.join(marks)}|\n"
        if line is None
        else f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n"
        for line in lines
    )


def is_number(cell: str) -> bool:
    """Return whether a table cell counts as a number, as ``> 739`` and ``0.99 / 1.00 (s1)`` do."""
    return not cell or (len(cell) < 30 and re.match(r"[*>~<+ -]*\d|-$", cell) is not None)


def bounded(row: Row, name: str) -> str:
    """Format a time in seconds. A lower bound begins with ``> ``."""
    if not row[name]:
        return "-"
    value, at_least = float(row[name]), name in row["at_least"].split()
    digits = 0 if value >= 100 else 1
    if at_least:  # Rounding up a lower bound could make the bound false.
        value = floor(value * 10**digits) / 10**digits
    return f"{'> ' if at_least else ''}{value:,.{digits}f}"


def tail_of(rows: Iterable[Row]) -> str:
    """Return the latency column to show: P99 if every row has enough latencies, otherwise P95."""
    known = ({"victim_n": int(n), "victim_p95_s": ""} if n else {} for n in map(_number_of, rows))
    tail = shown_tail(known)
    return f"victim_p{tail}_s"


def _number_of(row: Row) -> str | None:
    return row.get("victim_n")


def percentile_of(name: str) -> str:
    """Return a latency column's heading, such as ``P95``."""
    return name.removeprefix("victim_").removesuffix("_s").upper()


def whole(row: Row, name: str) -> str:
    """Format a row's value as a whole number."""
    return f"{float(row[name]):,.0f}"


def percent(row: Row, name: str) -> str:
    """Format the fraction ``row[name]`` as a percentage."""
    return f"{float(row[name]):.0%}"


def min_share(row: Row) -> str:
    """Format the lowest fair share among a run's clients, or return "not contended"."""
    return (
        percent(row, "min_entitlement_ratio") if row["min_entitlement_ratio"] else "not contended"
    )


def index(row: Row, name: str) -> str:
    """Format an index, such as Jain's index, with three digits."""
    return f"{float(row[name]):.3f}"


def plus_minus(values: Sequence[float], digits: int, sign: str = "+") -> str:
    """Format a mean, with half the width of its 95% interval if there are several values."""
    found = t_interval(values)
    mean = f"{found.mean:{sign},.{digits}f}"
    return mean if found.high is None else f"{mean} ± {found.high - found.mean:,.{digits}f}"


def differs(changes: Sequence[float]) -> bool:
    """Return whether the mean change is significant: its 95% interval excludes zero."""
    _, low, high = t_interval(changes)
    return low is not None and high is not None and not low <= 0 <= high


def filled(page: str, render: Callable[[str], str | None]) -> str:
    """Replace the table in each marked block of a page, and return the new page.

    ``render(NAME)`` returns the new table for the block NAME, or None to keep the block as it is.
    """

    def block(found: re.Match[str]) -> str:
        table = render(found[2])
        return found[0] if table is None else f"{found[1]}{table}{found[4]}"

    return BLOCK.sub(block, page)


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Write tables into the marked blocks of a page. ``tables`` maps block names to tables."""
    page.write_text(filled(page.read_text(encoding="utf-8"), tables.get), encoding="utf-8")
