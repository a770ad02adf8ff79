"""The contents of a trace for people, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.errors import printable
from fairbench.report.table import cut_apart
from fairbench.workloads.traces.rows import ALL

LEAST = 1e-9  # a smaller number is a rounding error of a sum that should be 0
BATCHED = 0.05  # fraction of the requests above which equal times are no coincidence
NAME_WIDTH = 24  # columns of a client's name
SHOWN = 20  # limit on the clients that are listed: those with the most requests


def inspected(facts: Mapping[str, Any]) -> RenderableType:
    """Render a trace's facts from ``facts_of_table``, with its ``file`` and ``format``."""
    blocks: list[RenderableType] = [Text(inspected_title(facts), style="bold")]
    pairs = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _pairs(facts):
        pairs.add_row(label, text)
    return Group(*blocks, Text(), pairs, Text(), _clients(facts))


def inspected_title(facts: Mapping[str, Any]) -> str:
    """Return the file's name and format, and which parts are synthetic."""
    title = f"{printable(facts['file'])}: {facts['format']}, sha256 {facts['sha256'][:12]}"
    return f"{title}; SYNTHETIC: {facts['synthetic']}" if facts["synthetic"] else title


def _pairs(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{facts['requests']:,} in {facts['programs']:,} programs"
    if facts["left_out"]:
        yield "left out", f"{facts['left_out']:,} {facts['who_left_out']}"
    unit = f", in {facts['unit']}" if facts.get("unit") else ""
    end_s = facts.get("last_end_s")
    answers = "" if end_s is None else f", {_time(end_s)} to the last answer's end"
    yield "time", f"{_time(facts['span_s'])} from the first to the last{answers}{unit}"
    mean, cv = _number(facts["per_s"]), _number(facts["cv"])
    yield "rate", f"{mean}/s on average, {_number(facts['peak_per_s'])}/s in the busiest minute"
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


def _clients(facts: Mapping[str, Any]) -> RenderableType:
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
            *(_number(row["per_s"]), _number(row["cv"])),
            *(f"{row[key]:,}" for key in ("input_p50", "input_p99", "output_p50", "output_p99")),
        )
    if len(largest) <= SHOWN:
        return table
    rest = sum(row["share"] for row in largest[SHOWN:])
    return Group(table, Text(f"and {len(largest) - SHOWN:,} more with {rest:.1%} of the requests"))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if LEAST <= value < 1000 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
