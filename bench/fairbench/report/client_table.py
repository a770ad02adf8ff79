"""The table of clients in a summary: one row for each, in as many tables as needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, columns_of, told
from fairbench.metrics.metric import Column, Display, Form
from fairbench.metrics.shown_percentiles import (
    P99,
    chosen_percentiles,
    is_carried,
    shown_client_tail,
)
from fairbench.report.numbers import latency, number, written
from fairbench.report.table import cut_apart, plain_table, stacked
from fairbench.results.store import Summary

NAME_WIDTH = 16  # columns of a client's name; longer names are cut in the table, never in the files
CROWD = 30  # number of clients from which on they are a crowd without a row each
FEW = "?"  # follows a percentile of too few latencies


def client_columns(summary: Summary, beside: int = 0) -> list[Column]:
    """Return the client metrics to show, with the supported high percentile and ``beside``."""
    tail, chosen = shown_client_tail([summary]), chosen_percentiles(summary)
    columns = columns_of(Display.CLIENTS, tail, chosen, beside=beside)
    return told(columns, {key for client in summary["clients"] for key in client})


def is_crowd(summary: Summary) -> bool:
    """Return whether a summary has too many clients for a row each."""
    return len(summary["clients"]) >= CROWD


def is_weighted(summary: Summary) -> bool:
    """Return whether some client's weight differs from 1."""
    return any("weight" in client for client in summary["clients"])


def described(name: str, client: Mapping[str, Any]) -> str:
    """Return a client's name with its special properties, over several runs."""
    special = ["heavy"] if client["misbehaving"] else []
    if weight := client.get("weight"):
        special.append(f"weight {number(weight['mean'])}")
    return f"{name} ({', '.join(special)})" if special else name


def client_value(row: Mapping[str, Any], column: Column, censored: Collection[str]) -> str:
    """Return a client's metric as text, given the summary keys that are lower bounds."""
    if column.form is Form.SECONDS:
        return latency(row, column.key, censored, f"{CLIENTS}{row['client']}.")
    return written(row, column.key, column.form)


def client_text(row: Mapping[str, Any], column: Column, censored: Collection[str]) -> str:
    """Return ``client_value``, marked if a high percentile has too few latencies."""
    return client_value(row, column, censored) + _mark(row, column)


def client_tables(
    summary: Summary, width: int, clients: Sequence[Mapping[str, Any]] | None = None
) -> RenderableType:
    """Return a row per client in at most ``width`` columns of text, if 50 are enough.

    Contains only these ``clients``, if given. Columns that do not fit make another table below.
    """
    rows = summary["clients"] if clients is None else clients
    columns = client_columns(summary, P99)
    return stacked(columns, lambda shown: _table(summary, shown, rows), width)


def _table(summary: Summary, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table()
    table.add_column("client", max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("behaviour", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    censored = set(summary.get("censored", ()))
    names = cut_apart((str(row["client"]) for row in rows), NAME_WIDTH)
    for row in rows:
        behaviour = Text("heavy", "yellow") if row["misbehaving"] else Text("well-behaved")
        values = (Text(client_text(row, column, censored)) for column in columns)
        table.add_row(Text(names[str(row["client"])]), behaviour, *values)
    return table


def _mark(row: Mapping[str, Any], column: Column) -> str:
    """Return the mark of a high percentile that has too few latencies."""
    metric = CATALOGUE.get(column.key)
    tail = metric.tail if metric else 0
    few = tail and row.get("latency_n") and not is_carried(row["latency_n"], tail)
    return FEW if few and row.get(column.key) is not None else ""
