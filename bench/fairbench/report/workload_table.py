"""A workload's expected load as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, number, percent, whole_percent
from fairbench.report.table import pairs_table, plain_table


def checked(facts: Mapping[str, Any]) -> RenderableType:
    """Build the table of a workload's expected load from the result of ``check_facts``."""
    title = f"{facts['workload']}, scenario {facts['scenario']}, dp {facts['dp']} on {facts['gpu']}"
    pairs = pairs_table(_load_pairs(facts))
    surprises = [Text(f"! {text}", "yellow") for text in facts["surprises"]]
    blank = [Text()] if surprises else []
    return Group(
        Text(title, style="bold"), Text(), _groups(facts), Text(), pairs, *blank, *surprises
    )


def _load_pairs(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    wrong = facts["misbehaving"]
    yield "clients", f"{facts['clients']:,}" + (f", of whom {wrong:,} are heavy" if wrong else "")
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
        called = row["clients"] + (" (heavy)" if row["misbehaving"] else "")
        rate, duration_s = UNDEFINED, facts["duration_s"]
        if duration_s is not None:
            counts = (row["smallest_programs"], row["largest_programs"])
            rate = "-".join(dict.fromkeys(f"{count / duration_s:.3g}" for count in counts))
        table.add_row(
            Text(called),
            row["program"],
            number(row["programs_per_s"]),
            rate,
            number(row["requests_per_program"]),
            number(round(row["input_tokens"])),
            percent(row["endless_hit_rate"]),
            number(round(row["output_tokens"])),
            UNDEFINED if facts["load"] is None else whole_percent(row["load"]),
        )
    return table
