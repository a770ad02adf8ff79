"""The work that every scheduler must do at the default load, and a lower bound on the P99 TTFT.

    FAIRBENCH_DATA=FOLDER python studies session-gates-bound [SEED ...]

The script simulates the runs that results/tables/session-gates-bound.csv lacks, by default for
seeds 61 to 65, and writes a table into docs/reference/gates.md. The simulated runs have no gate and
unlimited KV memory, so no context is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from fairbench.config.resolve import resolve
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.metrics.records import FINISHED, Floats, Requests
from fairbench.sim.run import Simulation, simulate_tables
from fairbench_studies.kit.rows import TABLES, append_row, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables
from fairbench_studies.session_gates.ceiling import SEEDS, UNLIMITED, spec_of
from fairbench_studies.session_gates.table import DP, PAGE, RATES

TABLE = TABLES / "session-gates-bound.csv"
MOST_BATCH = 64  # maximum batch size of a replica in the workload ``sessions``


class Calls(NamedTuple):
    """The finished calls that arrived in the measurement window; arrays have shape (n_calls,).

    ``new`` is the number of prompt tokens that no earlier call has computed. ``pause_s`` is the
    time from the end of the session's previous call to the arrival of a call, and NaN for the first
    call of a session. Calls of sub-agents overlap with the previous call, so the pause before them
    is 0.
    """

    prompt: Floats
    new: Floats
    answer: Floats
    pause_s: Floats
    ttft_s: Floats


def calls_of(requests: Requests, begin_s: float, end_s: float) -> Calls:
    """Return the finished calls that arrived from ``begin_s`` to ``end_s``."""
    assert requests.compulsory_tokens is not None
    order = np.lexsort((requests.arrival_s, requests.program_id, requests.client))
    same = np.zeros(len(order), bool)
    client, program = requests.client[order], requests.program_id[order]
    same[1:] = (client[1:] == client[:-1]) & (program[1:] == program[:-1])
    arrival_s, finish_s = requests.arrival_s[order], requests.finish_s[order]
    pause_s = np.full(len(order), np.nan)
    pause_s[1:] = np.where(same[1:], np.maximum(0.0, arrival_s[1:] - finish_s[:-1]), np.nan)
    chosen = (requests.status[order] == FINISHED) & (begin_s <= arrival_s) & (arrival_s < end_s)

    def column(values: Any) -> Floats:
        found: Floats = np.asarray(values, dtype=float)[order][chosen]
        return found

    return Calls(
        column(requests.input_tokens), column(requests.compulsory_tokens),
        column(requests.output_tokens), pause_s[chosen],
        (requests.first_token_s[order] - arrival_s)[chosen],
    )  # fmt: skip


def necessary(
    calls: Calls, costs: ProfileCosts, pool_tokens: int, length_s: float
) -> dict[str, Any]:
    """Return lower bounds on the calls' GPU time, as fractions of the total time of all replicas.

    - ``prefill``: the time if each new prompt token is computed once and all other tokens are
      cached.
    - ``decode``: the time if each output token is decoded in the largest batch that fits into
      memory.
    - ``recompute``: the time to recompute contexts that memory cannot keep during pauses. Each
      running call occupies memory for as long as the call would take alone. Memory without running
      calls keeps the contexts that save the most work for their size and pause. Every scheduler
      needs at least this recomputation time.
    - ``lone_p99_s``: the P99 TTFT if each call runs alone and only new tokens are computed.
    """
    pairs = zip(calls.prompt - calls.new, calls.new, strict=True)
    first_s = np.array([costs.prefill_s(int(cached), int(new)) for cached, new in pairs])
    again_s = np.array([costs.prefill_s(0, int(tokens)) for tokens in calls.prompt]) - first_s
    frontend_s = np.array([costs.frontend_s(int(tokens)) for tokens in calls.prompt])
    context = calls.prompt + calls.answer
    batch = np.clip(pool_tokens // context, 1, MOST_BATCH)
    batches = zip(batch, context, strict=True)
    step_s = [costs.decode_step_s(int(size), int(size * each)) / size for size, each in batches]
    alone_s = [costs.decode_step_s(1, int(each)) for each in context]
    tokens = np.maximum(0.0, calls.answer - 1)
    memory = DP * pool_tokens * length_s - float((context * (first_s + tokens * alone_s)).sum())
    later = ~np.isnan(calls.pause_s) & (again_s > 0)
    need, saved_s = (calls.prompt * calls.pause_s)[later], again_s[later]
    order = np.argsort(need / saved_s)
    used = np.cumsum(need[order])
    kept = np.clip((memory - (used - need[order])) / np.maximum(need[order], 1e-9), 0.0, 1.0)
    time_s = DP * length_s
    return {
        "calls": len(first_s),
        "prefill": float(first_s.sum()) / time_s,
        "decode": float((tokens * step_s).sum()) / time_s,
        "recompute": float((saved_s[order] * (1.0 - kept)).sum()) / time_s,
        "lone_p99_s": float(np.percentile(first_s + frontend_s, 99)),
        "unlimited_p99_s": float(np.percentile(calls.ttft_s, 99)),
    }


def row_of(scenario: str, seed: int) -> dict[str, Any]:
    """Return the table row of a scenario and seed."""
    usual = spec_of(scenario, seed, "fair-sessions")
    flags: dict[str, Any] = {
        "workload": "sessions", "scenario": scenario, "dp": DP, "seed": seed,
        "scheduler": "fcfs", "gateway": "none", "request_rate": RATES[scenario],
    }  # fmt: skip
    tables, facts = simulate_tables(resolve(flags, {"engine.max_total_tokens": UNLIMITED}))
    pool_tokens = Simulation(usual, usual.client_plans(), usual.source()).engine.pool_tokens
    window, costs = facts.window, ProfileCosts(load_profile(usual.gpu))
    calls = calls_of(tables.requests, window.start_s, window.end_s)
    found = necessary(calls, costs, pool_tokens, window.length_s)
    return {"scenario": scenario, "seed": seed, **found}


def extend(seeds: Sequence[int]) -> None:
    """Simulate the runs that the CSV file lacks, and append their rows."""
    known = {(row["scenario"], row["seed"]) for row in stored_rows(TABLE)}
    for seed in seeds:
        for scenario in RATES:
            if (scenario, str(seed)) not in known:
                append_row(TABLE, row_of(scenario, seed))


def mean(scenario: str, name: str) -> float:
    """Return the mean of a column over the stored seeds."""
    return fmean(float(row[name]) for row in stored_rows(TABLE) if row["scenario"] == scenario)


def bound_table() -> str:
    """Return a table of P99 TTFTs and of the least GPU work, with a row per scenario."""
    body = []
    for scenario in RATES:
        work = [f"{mean(scenario, one):.0%}" for one in ("prefill", "decode", "recompute")]
        waits = [f"{mean(scenario, one):.0f}" for one in ("lone_p99_s", "unlimited_p99_s")]
        body.append([scenario, *work, *waits])
    heads = ["scenario", "prefill", "decoding", "recomputation"]
    return as_markdown([*heads, "alone, s", "unlimited memory, s"], body)


def main(*seeds: str) -> None:
    """Simulate the missing runs, and write the table of the work that every scheduler must do."""
    extend(tuple(map(int, seeds)) or SEEDS)
    write_tables(PAGE, {f"{TABLE.stem}/work": bound_table()})
