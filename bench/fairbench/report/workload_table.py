"""A workload's expected load, or the contents of a trace, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.errors import printable
from fairbench.report.numbers import UNDEFINED, number, percent, whole_percent
from fairbench.report.table import cut_apart, pairs_table, plain_table
from fairbench.workloads.traces import ALL


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


LEAST = 1e-9  # Smaller values are rounding errors of a sum that should be 0.
# If more than this fraction of requests arrive at the same time as another request, the workload
# table has a line "batches".
BATCHED = 0.05
NAME_WIDTH = 24  # Longer client names are shortened in the table of a workload.
SHOWN = 20


def inspected(facts: Mapping[str, Any]) -> RenderableType:
    """Build the table of a trace from its file, its format and the result of ``facts_of_table``."""
    blocks: list[RenderableType] = [Text(inspected_title(facts), style="bold")]
    pairs = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _trace_pairs(facts):
        pairs.add_row(label, text)
    return Group(*blocks, Text(), pairs, Text(), _trace_clients(facts))


def inspected_title(facts: Mapping[str, Any]) -> str:
    """Return a trace's file name, format and hash, and which of its fields are made up."""
    title = f"{printable(facts['file'])}: {facts['format']}, sha256 {facts['sha256'][:12]}"
    return f"{title}; SYNTHETIC: {facts['synthetic']}" if facts["synthetic"] else title


def _trace_pairs(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{facts['requests']:,} in {facts['programs']:,} programs"
    if facts["left_out"]:
        yield "left out", f"{facts['left_out']:,} {facts['who_left_out']}"
    unit = f", in {facts['unit']}" if facts.get("unit") else ""
    end_s = facts.get("last_end_s")
    answers = "" if end_s is None else f", {_time(end_s)} to the last answer's end"
    yield "time", f"{_time(facts['span_s'])} from the first to the last{answers}{unit}"
    mean, cv = _three_digits(facts["per_s"]), _three_digits(facts["cv"])
    yield (
        "rate",
        f"{mean}/s on average, {_three_digits(facts['peak_per_s'])}/s in the busiest minute",
    )
    yield "burstiness", f"{cv} (coefficient of variation of the gaps; 1 for Poisson)"
    if facts["batched_ratio"] > BATCHED:
        batched = f"{facts['batched_ratio']:.1%} arrive at the same time as another request"
        yield "batches", f"{batched}: --trace-spread"
    for name in ("input", "output"):
        ranks = ", ".join(f"P{p} {facts[f'{name}_p{p}']:,}" for p in (50, 90, 99))
        mean, most = f"mean {facts[f'{name}_mean']:,.0f}", f"max {facts[f'{name}_max']:,}"
        yield name, f"{facts[f'{name}_tokens']:,} tokens: {mean}, {ranks}, {most}"
    several = f"{facts['shared_ratio']:.1%} of the input is in blocks that several requests share"
    hits = f"an unlimited cache hits {facts['infinite_hit_rate']:.1%}"
    yield "prefixes", f"{several}; {hits}" if facts["shared_ratio"] else "nothing is shared"
    if column := facts.get("cached"):
        yield "cached", f"{printable(column)} is not replayed; a column hash_ids replays cache hits"
    names = {row["client"] for row in facts["clients"]}
    nameless = (
        f"; {ALL} stands for requests without a client" if ALL in names and len(names) > 1 else ""
    )
    if why := facts.get("nameless"):
        nameless = f", {ALL}: {why}"
    yield "clients", f"{len(names):,}{nameless}"


def _trace_clients(facts: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("client", max_width=NAME_WIDTH, no_wrap=True)
    for name in ("requests", "share", "/s", "burst", "in P50", "P99", "out P50", "P99"):
        table.add_column(name, justify="right")
    largest = sorted(facts["clients"], key=lambda row: -row["requests"])
    names = cut_apart((printable(row["client"]) for row in largest[:SHOWN]), NAME_WIDTH)
    for row in largest[:SHOWN]:
        table.add_row(
            names[printable(row["client"])],
            f"{row['requests']:,}",
            f"{row['share']:.1%}",
            *(_three_digits(row["per_s"]), _three_digits(row["cv"])),
            *(f"{row[key]:,}" for key in ("input_p50", "input_p99", "output_p50", "output_p99")),
        )
    if len(largest) <= SHOWN:
        return table
    rest = sum(row["share"] for row in largest[SHOWN:])
    return Group(table, Text(f"and {len(largest) - SHOWN:,} more with {rest:.1%} of the requests"))


def _three_digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if LEAST <= value < 1000 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
