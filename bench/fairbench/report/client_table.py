"""Tables of a summary's clients: one row for each client, or the distribution over clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, columns_of, columns_with_values
from fairbench.metrics.floods import HEAVY, LEAST_SHARE
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

# The table of clients cuts names after 16 characters; files contain the whole name.
NAME_WIDTH = 16
CROWD = 30  # With at least this many clients, a table shows distributions instead of clients.
FEW = "?"  # This mark follows a percentile that was computed from too few latencies.


def client_columns(summary: Summary, beside: int = 0) -> list[Column]:
    """Return the columns of the table of clients.

    The columns show the P99 latency, or the P95 if there are too few latencies for a P99.
    ``beside`` is a second percentile to show; 0 means none.
    """
    tail, chosen = shown_client_tail([summary]), chosen_percentiles(summary)
    columns = columns_of(Display.CLIENTS, tail, chosen, beside=beside)
    return columns_with_values(columns, {key for client in summary["clients"] for key in client})


def is_crowd(summary: Summary) -> bool:
    """Return whether a summary has too many clients for one row per client."""
    return len(summary["clients"]) >= CROWD


def is_weighted(summary: Summary) -> bool:
    """Return whether any client has a weight other than 1."""
    return any("weight" in client for client in summary["clients"])


def described(name: str, client: Mapping[str, Any]) -> str:
    """Return a client's name, with "heavy" for a heavy client and with a weight other than 1."""
    special = ["heavy"] if client["misbehaving"] else []
    if weight := client.get("weight"):
        special.append(f"weight {number(weight['mean'])}")
    return f"{name} ({', '.join(special)})" if special else name


def client_value(row: Mapping[str, Any], column: Column, censored: Collection[str]) -> str:
    """Return a client's metric as text, as a lower bound if its key is in ``censored``."""
    if column.form is Form.SECONDS:
        return latency(row, column.key, censored, f"{CLIENTS}{row['client']}.")
    return written(row, column.key, column.form)


def client_text(row: Mapping[str, Any], column: Column, censored: Collection[str]) -> str:
    """Return a client's metric as text, with a mark on a percentile of too few latencies."""
    value, metric = client_value(row, column, censored), CATALOGUE.get(column.key)
    tail = metric.tail if metric else 0
    few = tail and row.get("latency_n") and not is_carried(row["latency_n"], tail)
    return value + FEW if few and row.get(column.key) is not None else value


def client_tables(
    summary: Summary, width: int, clients: Sequence[Mapping[str, Any]] | None = None
) -> RenderableType:
    """Return tables of at most ``width`` characters (at least 50), with a row per client.

    The tables contain only the given ``clients``; None means all clients. If a table with all
    metrics is too wide, some metrics move to a second table.
    """
    rows = summary["clients"] if clients is None else clients
    columns = client_columns(summary, P99)
    return stacked(columns, lambda shown: _client_table(summary, shown, rows), width)


def _client_table(
    summary: Summary, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> Table:
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


WORST = 10
PARTS = (0.1, 0.25, 0.5, 0.75, 0.9)
STEPS = (0.25, 0.5, 0.75, 0.9, 0.99)
"""The ends of the ranges in a histogram of clients' ratios of service to fair share."""


class Lorenz(NamedTuple):
    """A Lorenz curve: cumulative fractions of clients (smallest first) and of their service."""

    clients: list[float]
    service: list[float]

    @property
    def gini(self) -> float:
        """The Gini index of the service: 0 if service is proportional to weight.

        The Gini index is close to 1 if a single client gets all service.
        """
        clients, service = np.asarray(self.clients), np.asarray(self.service)
        return 1 - float(np.sum(np.diff(clients) * (service[1:] + service[:-1])))

    def of_smallest(self, part: float) -> float:
        """Return the share of service that the least-served fraction ``part`` of clients got."""
        return float(np.interp(part, self.clients, self.service))


def lorenz(amounts: Sequence[float], weights: Sequence[float] | None = None) -> Lorenz | None:
    """Return the Lorenz curve of amounts, or None if all amounts are 0.

    A client with weight w counts as w clients, each with the client's amount divided by w.
    """
    amount = np.asarray(amounts, dtype=np.float64)
    weight = np.ones_like(amount) if weights is None else np.asarray(weights, dtype=np.float64)
    if not amount.sum() > 0:
        return None
    order = np.argsort(amount / weight, kind="stable")
    clients, service = (np.cumsum(values[order]) / values.sum() for values in (weight, amount))
    return Lorenz([0.0, *clients.tolist()], [0.0, *service.tolist()])


def lorenz_of_service(summary: Summary) -> Lorenz | None:
    """Return the Lorenz curve of the service rates of clients, weighted by client weights."""
    rows = summary["clients"]
    return lorenz(
        [row["service_rate_tok_s"] or 0.0 for row in rows], [row.get("weight", 1.0) for row in rows]
    )


def share_ratios(summary: Summary) -> list[float]:
    """Return the known ratios of clients' service to fair share, smallest first."""
    found = (row["entitlement_ratio"] for row in summary["clients"])
    return sorted(one for one in found if one is not None)


def counts_by_ratio(ratios: Sequence[float]) -> Iterator[tuple[str, int]]:
    """Yield each range of service / fair share as text, with the number of clients in the range."""
    numbers = np.searchsorted(np.asarray(STEPS), np.asarray(ratios), side="right")
    counts = np.bincount(numbers, minlength=len(STEPS) + 1).tolist()
    low = 0.0
    for high, count in zip(STEPS, counts, strict=False):
        yield f"{low:.0%} to {high:.0%}", count
        low = high
    yield f"{low:.0%} and more", counts[-1]


def worst_clients(summary: Summary, count: int = WORST) -> list[dict[str, Any]]:
    """Return the well-behaved clients with the lowest ratios of service to fair share.

    Clients are ordered by service / fair share, the lowest ratio first. Clients with equal or
    undefined ratios are ordered by P99 latency: first unknown values, then the highest. Values are
    means if several runs are combined. Without named heavy clients, clients that demand much more
    than others come last.
    """
    rows = summary["clients"]
    good = [row for row in rows if not row["misbehaving"] and row["programs"]]
    demands = [number_or_mean(row.get("demand_tok_s")) or 0.0 for row in rows]
    total, named = sum(demands), any(row["misbehaving"] for row in rows)
    heavy = {
        row["client"]
        for row, one in zip(rows, demands, strict=True)
        if not named and one * (len(rows) - 1) > HEAVY * (total - one) and one > LEAST_SHARE * total
    }

    def badness(row: dict[str, Any]) -> tuple[bool, float, float]:
        ratio, late_s = number_or_mean(row["entitlement_ratio"]), number_or_mean(row.get("p99_s"))
        late = -(float("inf") if late_s is None else late_s)
        return row["client"] in heavy, (float("inf") if ratio is None else ratio), late

    return sorted(good, key=badness)[:count]


def number_or_mean(value: Any) -> float | None:
    """Return ``value``, or its mean if ``value`` combines several runs."""
    found: float | None = value["mean"] if isinstance(value, dict) else value
    return found


def shown_clients(combined: Summary) -> tuple[list[dict[str, Any]], str]:
    """Return the clients that get a row in the table, and a text on how they were chosen.

    If all clients get a row in the table, the returned text is "".
    """
    rows = combined["clients"]
    if not is_crowd(combined):
        return rows, ""
    worst = worst_clients(combined)
    return worst, f"the {len(worst)} of {len(rows):,} clients that are worst off"


def crowd_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) on how the service is distributed over many clients."""
    wrong = sum(row["misbehaving"] for row in summary["clients"])
    total = len(summary["clients"])
    yield "clients", f"{total:,}" + (f", {wrong:,} of them heavy" if wrong else "")
    by_weight = " by weight" if any("weight" in row for row in summary["clients"]) else ""
    if curve := lorenz_of_service(summary):
        parts = " / ".join(f"{100 * part:.0f}" for part in PARTS)
        held = " / ".join(f"{100 * curve.of_smallest(part):.1f}" for part in PARTS)
        yield "smallest", f"the {parts}% of clients with the least service{by_weight} had {held}%"
        most = max(summary["clients"], key=lambda row: row["service_rate_tok_s"] or 0.0)
        total_tok_s = sum(row["service_rate_tok_s"] or 0.0 for row in summary["clients"])
        share = (most["service_rate_tok_s"] or 0.0) / total_tok_s
        yield "largest", f"{most['client']} had {share:.1%} of the service"
        yield (
            "Gini index",
            f"{curve.gini:.3f} of service{by_weight}; 0 if all had equal service",
        )


def ratio_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield a histogram of clients by the fraction of their fair share that they received."""
    ratios = share_ratios(summary)
    for position, (label, count) in enumerate(counts_by_ratio(ratios) if ratios else ()):
        bar = "#" * round(40 * count / len(ratios)) or ("." if count else "")
        heading = "" if position else "fair share"
        yield heading, f"{label:>12} of it: {count:>5,} clients  {bar}".rstrip()


def many_keys(keys: Sequence[str], summary: Summary) -> list[str]:
    """Replace keys ``CLIENT.KEY`` that differ only in the client by ``KEY of N clients``."""
    names = {row["client"] for row in summary["clients"]}
    clients: dict[str, int] = {}
    for key in keys:
        client, dot, rest = key.partition(".")
        plain = not dot or client not in names
        clients[key if plain else rest] = 0 if plain else clients.get(rest, 0) + 1
    return [f"{key} of {count:,} clients" if count else key for key, count in clients.items()]
