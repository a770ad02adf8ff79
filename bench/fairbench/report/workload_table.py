"""A workload's expected load for people, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, number, percent, whole_percent
from fairbench.report.table import pairs_table, plain_table


def checked(facts: Mapping[str, Any]) -> RenderableType:
    """Render the facts of ``fairbench.execute.expected.check_facts``."""
    title = f"{facts['workload']}, scenario {facts['scenario']}, dp {facts['dp']} on {facts['gpu']}"
    pairs = pairs_table(_pairs(facts))
    surprises = [Text(f"! {text}", "yellow") for text in facts["surprises"]]
    blank = [Text()] if surprises else []
    return Group(
        Text(title, style="bold"), Text(), _groups(facts), Text(), pairs, *blank, *surprises
    )


def _pairs(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    wrong = facts["misbehaving"]
    yield "clients", f"{facts['clients']:,}" + (f", of whom {wrong:,} misbehave" if wrong else "")
    time = "until all are sent" if facts["duration_s"] is None else f"in {facts['duration_s']:g} s"
    programs, requests = facts["programs"], facts["requests"]
    yield "programs", f"about {programs:,.0f} with {requests:,.0f} requests, {time}"
    if facts["peak"] is not None:
        yield (
            "peak",
            f"{facts['peak']:.2f} times the mean load, around {facts['peak_s']:.0f} s: "
            f"{whole_percent(facts['peak_load'])} of the cluster without a cache",
        )
    if facts["load"] is not None:
        low, high = whole_percent(facts["load"]), whole_percent(facts["load_uncached"])
        yield (
            "load",
            f"about {low} of the cluster's capacity with an unlimited cache, {high} "
            "without a cache",
        )


def _groups(facts: Mapping[str, Any]) -> Table:
    table = plain_table()
    table.add_column("clients", max_width=30)
    table.add_column("program")
    for heading in ("programs/s", "of one", "requests", "input", "cached", "output", "load"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in facts["groups"]:
        called = row["clients"] + (" (misbehave)" if row["misbehaving"] else "")
        table.add_row(
            Text(called),
            row["program"],
            number(row["programs_per_s"]),
            _range(row, facts["duration_s"]),
            number(row["requests_per_program"]),
            number(round(row["input_tokens"])),
            percent(row["endless_hit_rate"]),
            number(round(row["output_tokens"])),
            UNDEFINED if facts["load"] is None else whole_percent(row["load"]),
        )
    return table


def _range(row: Mapping[str, Any], duration_s: float | None) -> str:
    """Return the programs/s of the smallest and the largest client of a group."""
    if duration_s is None:
        return UNDEFINED
    low, high = (f"{row[f'{end}_programs'] / duration_s:.3g}" for end in ("smallest", "largest"))
    return low if low == high else f"{low}-{high}"
