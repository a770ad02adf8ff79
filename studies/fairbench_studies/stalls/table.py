"""Remedies for stalls on a replica that serves four chats and a client with long prompts.

    python studies stalls

The script simulates every remedy with three seeds, below saturation and under overload. Runs are
written to results/tables/stalls.csv, and mean metrics to docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_studies.kit.rows import ROOT, TABLES, write_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = TABLES / "stalls.csv"
PAGE = ROOT / "docs/reference/metrics.md"
WORKLOAD = Path(__file__).with_name("workload.toml")
SEEDS = (1, 2, 3)
OVERLOAD_RATE = 4.5  # requests/s of each chatting client, about six times the default rate
LONG = "client-4"  # the client with long prompts
# ``REMEDIES`` holds a local scheduler and settings for each remedy against stalls, by engine.
REMEDIES: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "sglang": {
        "none: chunks of 8,192": ("fcfs", {}),
        "chunks of 2,048": ("fcfs", {"engine.chunked_prefill_size": 2_048}),
        "chunks of 512": ("fcfs", {"engine.chunked_prefill_size": 512}),
        "mixed, chunks of 8,192": ("fcfs", {"engine.enable_mixed_chunk": True}),
        "mixed, chunks of 2,048": (
            "fcfs", {"engine.enable_mixed_chunk": True, "engine.chunked_prefill_size": 2_048},
        ),
        "mixed, chunks of 512": (
            "fcfs", {"engine.enable_mixed_chunk": True, "engine.chunked_prefill_size": 512},
        ),
        "shortest-prefill-first": ("shortest-prefill-first", {}),
        "shortest-prefill-first, mixed, 2,048": (
            "shortest-prefill-first",
            {"engine.enable_mixed_chunk": True, "engine.chunked_prefill_size": 2_048},
        ),
        "prefill share of 40%": ("prefill-share", {}),
        "prefill share of 40%, chunks of 2,048": (
            "prefill-share", {"engine.chunked_prefill_size": 2_048},
        ),
        "prefill share, automatic": ("prefill-share-auto", {}),
    },
    "vllm": {
        "none: steps of 2,048": ("fcfs", {}),
        "steps of 8,192": ("fcfs", {"vllm.max_num_batched_tokens": 8_192}),
        "steps of 512": ("fcfs", {"vllm.max_num_batched_tokens": 512}),
        "threshold 1,024": ("fcfs", {"vllm.long_prefill_token_threshold": 1_024}),
        "threshold 512": ("fcfs", {"vllm.long_prefill_token_threshold": 512}),
        "threshold 256": ("fcfs", {"vllm.long_prefill_token_threshold": 256}),
    },
}  # fmt: skip


def summary_of(engine: str, remedy: str, seed: int, rate: float | None) -> dict[str, Any]:
    """Simulate a replica with one of the remedies for stalls, and return the summary.

    If ``rate`` is None, requests arrive at the workload's rate.
    """
    local, settings = REMEDIES[engine][remedy]
    flags: dict[str, Any] = {
        "workload": str(WORKLOAD), "scenario": "s1", "engine": engine, "seed": seed,
        "scheduler": f"round-robin+{local}", "dp": 1,
    }  # fmt: skip
    if rate is not None:
        flags["request_rate"] = rate
    return dict(simulate(resolve(flags, settings)).summary)


def row(engine: str, remedy: str, seed: int) -> dict[str, Any]:
    """Return the table row for a remedy against stalls and a seed.

    ``tok_s`` is the throughput (tokens/s) of an overloaded run.
    """
    usual = summary_of(engine, remedy, seed, None)
    overload = summary_of(engine, remedy, seed, OVERLOAD_RATE)
    assert overload["completed"] == overload["num_requests"]
    tokens = overload["total_input_tokens"] + overload["total_output_tokens"]
    clients = {one["client"]: one for one in usual["clients"]}
    long = clients.pop(LONG)
    return {
        "engine": engine,
        "remedy": remedy,
        "seed": seed,
        "stalled_s_per_min": fmean(one["stalled_s_per_min"] for one in clients.values()),
        "max_gap_s": max(one["max_gap_s"] for one in clients.values()),
        "victim_ttft_p99_s": fmean(one["p99_s"] for one in clients.values()),
        "long_ttft_p99_s": long["p99_s"],
        "tok_s": tokens / overload["duration"],
    }


def remedy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of means over seeds, with a row per engine and remedy."""
    body = []
    for engine, remedies in REMEDIES.items():
        for remedy in remedies:
            mine = [one for one in rows if (one["engine"], one["remedy"]) == (engine, remedy)]
            stalled, gap, short, long, tok_s = (
                fmean(one[name] for one in mine)
                for name in (
                    *("stalled_s_per_min", "max_gap_s", "victim_ttft_p99_s"),
                    *("long_ttft_p99_s", "tok_s"),
                )
            )
            cells = [f"{stalled:.1f}", f"{gap:.2f}", f"{short:.2f}", f"{long:.1f}", f"{tok_s:,.0f}"]
            body.append([engine, remedy, *cells])
    heads = ["stalled, s per minute", "longest gap, s", "P99 TTFT, s", "P99 TTFT of long, s"]
    return as_markdown(["engine", "remedy", *heads, "overload, tok/s"], body)


def main() -> None:
    """Simulate all remedies for stalls, and write the table of runs and the table of means."""
    rows = [
        row(engine, remedy, seed)
        for engine, remedies in REMEDIES.items()
        for remedy in remedies
        for seed in SEEDS
    ]
    write_rows(TABLE, rows)
    write_tables(PAGE, {"stalls/remedies": remedy_table(rows)})
