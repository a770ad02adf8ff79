"""The rows and columns of the large tables in results/ that pages show."""

from __future__ import annotations

import re
from collections.abc import Mapping

# ``PARTS`` maps each shortened table to a pattern of the rows to show, and to the columns to show.
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "traces": (
        r"(mooncake|arena|reasoning-clients) \| (fcfs|vtc|d2lpm) \||agents \| (fcfs|preble) \|",
        (
            *("trace", "scheduler", "k tok/s", "min. fair share of own"),
            *("P50 TTFT, s", "P99 TTFT, s", "P99 whole, s"),
        ),
    ),
    "traces-seeds": (
        r"[^|]+\| (fcfs|vtc) \|",
        ("trace", "scheduler", "min. fair share of own, %", "P50 TTFT, s", "P99 TTFT, s"),
    ),
    "traces-every": (
        r"(fcfs|vtc|d2lpm|fair-finish|(dynamo|llm-d)\+fcfs|gateway dlpm) \|",
        ("scheduler", "mooncake", "arena", "agents", "reasoning-clients"),
    ),
    "deadlines": (
        r"`[\w-]+` \|[^|]+\| in time, worst",
        ("scheduler", "collapses at", "", "1", "1.25", "1.5", "2"),
    ),
    "sessions": (r"s1|s2 \| (vtc|d2lpm|fair-finish) \|", ()),
    "profile-error": (
        r".*(throughput, D2LPM over VTC|P95, VTC over D2LPM)",
        ("configuration", "conclusion", "no error", "40%", "operator profile", "verdict"),
    ),
    "default-loads": (r"(tot|judge|long-qa|chat) ", ()),
    "default-loads-a10g": (r"(tot|chat) ", ()),
    "quantum": (r"s1 \| 16 \|", ()),
    "fig4": (r"\d+ \| 200 \|", ()),
    "fig7": (r"`(tot s1|long-qa s2)` \| `(lpm|vtc|d2lpm)`", ()),
    "pools": (r"`s1`", ()),
    "requests-per-second": (r"`chat` `(fcfs|lpm|vtc|d2lpm)`", ()),
    "router-scale": (
        "",
        (
            *("router", "decisions/s, 64", "decisions/s, 1,000", "calls each, 64"),
            *("calls each, 1,000", "MiB, 64", "MiB, 1,000"),
        ),
    ),
    "router-process": (r"512 words, (16|256) chunks, 64 workers|21,000|9,500", ()),
    "routers": (
        r"one router|independent \| (3|10):1|exchange every_s=(0.01|1|10) \| 10:1"
        r"|exchange every_s=0.1 (lost=0.9|delay_s=1 )",
        (
            *("routers", "skew", "premium's share", "error, points", "service, tok/s"),
            *("gap, tokens", "bound"),
        ),
    ),
    "routers-d2lpm": (
        r"one router|independent \| (1|10):1|exchange every_s=(0.01|1|10) \| 10:1"
        r"|exchange every_s=0.1 lost=0.9 \|",
        (
            *("routers", "skew", "behaved share", "error, points", "service, tok/s"),
            *("apart, tokens", "bound"),
        ),
    ),
    "router-scaling": (
        r"[^|]+\| 16 \| (1 \||8 \| (independent|sticky|exchange) \|)",
        (
            *("workload", "routers", "form", "hit rate", "service, tok/s"),
            *("min. fair share of own", "well-behaved P99, s"),
        ),
    ),
    "frontier-robustness": (
        r"default|replicas (1|16)|load 2|A10G|A100, Llama 3.1 70B|pool of 1/4|no heavy",
        (),
    ),
    "frontier-levers": (r"published", ()),
    "driver-cost": (r"(100|500) \|", ()),
    "serving": (r"sglang-|vllm-(a100|h100)-(mixed|fixed-c32)|vllm-h100-n8", ()),
    "simulator-speed": (
        r"chat s1 under|one ordering pass over 1,000 waiting|`fairbench --help`|start-up"
        r"|peak memory(, chat| with 996)",
        (),
    ),
    "sharing-brief": (r"(?!d2lpm \| split|dlpm \| (split|owner))", ()),
    "sglang-cells": (
        r"(chat|judge|tot)-\w+-(d2lpm|vtc)",
        (
            *("configuration", "simulated, s", "requests", "iterations", "retractions"),
            *("rows", "rows that differ"),
        ),
    ),
    "vllm-cells": (
        "",
        (
            *("configuration", "simulated, s", "requests", "iterations", "retractions"),
            *("rows", "rows that differ"),
        ),
    ),
}


def part(name: str, table: str) -> str:
    """Return the part of a rendered table that pages show, by default the whole table."""
    if name not in PARTS:
        return table
    rows, columns = PARTS[name]
    header, marks, *body = ([cell.strip() for cell in _cells(line)] for line in table.splitlines())
    kept = [header.index(one) for one in columns or header]
    matching = (row for row in body if re.match(rows, " | ".join(row)))
    lines = [" | ".join(row[at] for at in kept) for row in (header, *matching)]
    lines = [re.sub(r" +(?= )", "", f"| {line} |") for line in lines]
    lines.insert(1, f"|{'|'.join(marks[at] for at in kept)}|")
    return "".join(f"{line}\n" for line in lines)


def _cells(line: str) -> list[str]:
    return line.strip().removeprefix("|").removesuffix("|").split("|")
