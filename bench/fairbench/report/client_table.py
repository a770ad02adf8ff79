"""The table of clients in a summary: one row each, as many columns as fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import more_than, number, percent
from fairbench.results.store import Summary

NAME_WIDTH = 16  # of a client; longer names are cut in the table, never in the files


NUMBERS: Mapping[str, Callable[[Summary, set[str]], str]] = {
    "programs": lambda row, _: number(row["programs"]),
    "service\ntok/s": lambda row, _: number(row["service_rate_tok_s"]),
    "actual\ntok/s": lambda row, _: number(row["actual_service_tok_s"]),
    "of fair\nshare": lambda row, _: percent(row["entitlement_ratio"]),
    "P50\ns": lambda row, censored: latency(row, "p50_s", censored, _prefix(row)),
    "P99\ns": lambda row, censored: latency(row, "p99_s", censored, _prefix(row)),
    "n": lambda row, _: number(row.get("latency_n")),
    "cache\nhit": lambda row, _: percent(row["cache_hit_rate"]),
}
# What a narrow terminal goes without, first to last.
EXPENDABLE = ("actual\ntok/s", "n", "programs", "cache\nhit")


def client_table(summary: Summary, width: int) -> Table:
    """One row per client in at most ``width`` columns of text, if 50 are enough.

    Numbers are never cut; whole columns are left out instead.
    """
    ruler = Console(width=10 * width)
    for count in range(len(EXPENDABLE) + 1):
        table = _table(summary, [name for name in NUMBERS if name not in EXPENDABLE[:count]])
        if ruler.measure(table).maximum <= width:
            break
    return table


def _table(summary: Summary, headings: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client", max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("behaviour", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    censored = set(summary.get("censored", ()))
    for row in summary["clients"]:
        behaviour = Text("misbehaves", "yellow") if row["misbehaving"] else Text("well")
        cells = (Text(NUMBERS[heading](row, censored)) for heading in headings)
        table.add_row(Text(str(row["client"])), behaviour, *cells)
    return table


def _prefix(row: Summary) -> str:
    return f"clients.{row['client']}."


def latency(row: Summary, key: str, censored: set[str], prefix: str = "") -> str:
    """Seconds, ``> x`` where the key, as it is in the summary, is among the ``censored``."""
    value = row[key]
    if value is not None and prefix + key in censored:
        return more_than(float(value))
    return number(None if value is None else float(value))
