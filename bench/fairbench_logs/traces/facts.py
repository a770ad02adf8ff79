"""Statistics of a trace, and the table in which ``fairbench trace inspect`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.errors import printable
from fairbench.report.table import cut_apart
from fairbench.workloads.traces import ALL
from fairbench.workloads.traces.table import Floats, Ints, TraceTable

PERCENTILES = (50, 90, 99)
PEAK_S = 60.0


def facts_of_table(table: TraceTable) -> dict[str, Any]:
    """Return JSON-ready statistics of all requests and, under ``clients``, of each client.

    Rates are in requests/s, and lengths are in tokens. ``cv`` is the coefficient of variation of
    the gaps between requests: 1 for a Poisson process, null for fewer than three requests.
    ``last_end_s`` is the time from the first arrival to the end of the last answer, or null if no
    answer's end is known.
    """
    sessions = table.session[table.session >= 0]
    by_client = np.argsort(table.client, kind="stable")
    counts = np.bincount(table.client, minlength=len(table.clients))
    parts = np.split(by_client, np.cumsum(counts)[:-1])
    alone = len(table) - len(sessions)
    ends = table.end_s[np.isfinite(table.end_s)]
    peak = np.unique(table.arrival_s // PEAK_S, return_counts=True)[1].max()
    peak_s = min(PEAK_S, float(table.arrival_s[-1])) or PEAK_S
    return {
        **_request_facts(table, np.arange(len(table))),
        "left_out": table.left_out,
        "who_left_out": table.who_left_out,
        "programs": alone + len(np.unique(sessions)),
        "span_s": table.span_s,
        "last_end_s": float(ends.max() - table.arrival_s.min()) if len(ends) else None,
        "peak_per_s": float(peak / peak_s),
        "batched_ratio": 1 - len(np.unique(table.arrival_s)) / len(table),
        **shared_prefixes(table),
        "clients": [
            {"client": name, "share": len(rows) / len(table), **_request_facts(table, rows)}
            for name, rows in zip(table.clients, parts, strict=True)
            if len(rows)
        ],
    }


def _request_facts(table: TraceTable, rows: Ints) -> dict[str, Any]:
    return {
        "requests": len(rows),
        "per_s": len(rows) / table.span_s if table.span_s else None,
        "cv": burstiness(table.arrival_s[rows]),
        **_length_facts("input", table.input_tokens[rows]),
        **_length_facts("output", table.output_tokens[rows]),
    }


def burstiness(arrival_s: Floats) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals; None if not defined."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def _length_facts(name: str, tokens: Ints) -> dict[str, Any]:
    ranks = np.percentile(tokens, PERCENTILES, method="inverted_cdf")
    return {
        f"{name}_tokens": int(tokens.sum()),
        f"{name}_mean": float(tokens.mean()),
        **{f"{name}_p{p}": int(one) for p, one in zip(PERCENTILES, ranks, strict=True)},
        f"{name}_max": int(tokens.max()),
    }


def shared_prefixes(table: TraceTable) -> dict[str, float]:
    """Return the fractions of input tokens that requests share, and that a prefix cache could hit.

    ``shared_ratio`` is the fraction of input tokens in blocks that occur in several requests.
    ``infinite_hit_rate`` is the fraction of input tokens that would hit an unlimited prefix cache.
    ``shared_ratio`` and ``infinite_hit_rate`` are 0 if the trace has no blocks.
    """
    total = int(table.input_tokens.sum())
    counts = np.diff(table.first_block)
    row = np.repeat(np.arange(len(table)), counts)
    place = np.arange(len(table.blocks)) - np.repeat(table.first_block[:-1], counts)
    left = table.input_tokens[row] - place * table.block_size[row]
    tokens = np.clip(left, 0, table.block_size[row])
    _, code = np.unique(table.blocks, return_inverse=True)
    pairs = np.unique(np.stack([code, row]), axis=1)[0] if len(code) else code
    several = np.bincount(pairs, minlength=1)[code] > 1 if len(code) else np.zeros(0, bool)
    return {
        "shared_ratio": float(tokens[several].sum() / total),
        "infinite_hit_rate": _hit_tokens(table, code, tokens) / total,
    }


def _hit_tokens(table: TraceTable, code: Ints, tokens: Ints) -> int:
    """Return how many input tokens would hit an unlimited prefix cache."""
    seen: dict[tuple[int, int], int] = {}  # The prefix tree maps (node, block) to a child node.
    hits = 0
    codes, lengths, first = code.tolist(), tokens.tolist(), table.first_block.tolist()
    for begin, end in pairwise(first):
        node = 0
        for at in range(begin, end):
            key = (node, codes[at])
            below = seen.get(key)
            if below is None:
                seen[key] = below = len(seen) + 1
            else:
                hits += lengths[at]
            node = below
    return hits


LEAST = 1e-9  # Smaller values are rounding errors of a sum that should be 0.
# If more than this fraction of requests arrive at the same time as another request, the trace's
# table has a line "batches".
BATCHED = 0.05
NAME_WIDTH = 24  # Longer client names are shortened in the trace's table.
SHOWN = 20


def inspected(facts: Mapping[str, Any]) -> RenderableType:
    """Build the table of a trace from its file, its format and the result of ``facts_of_table``."""
    title = Text(inspected_title(facts), style="bold")
    pairs = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _trace_pairs(facts):
        pairs.add_row(label, text)
    return Group(title, Text(), pairs, Text(), _trace_clients(facts))


def inspected_title(facts: Mapping[str, Any]) -> str:
    """Return a trace's file name, format and hash, and which of its fields are made up."""
    title = f"{printable(facts['file'])}: {facts['format']}, sha256 {facts['sha256'][:12]}"
    return f"{title}; SYNTHETIC: {facts['synthetic']}" if facts["synthetic"] else title


def _trace_pairs(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{facts['requests']:,} in {facts['programs']:,} programs"
    if facts["left_out"]:
        yield "left out", f"{facts['left_out']:,} {facts['who_left_out']}"
    if repeated := facts.get("repeated"):
        yield "repeated", f"{repeated:,} lines repeat the id of a request, and count as its parts"
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
