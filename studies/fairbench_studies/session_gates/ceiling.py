"""The highest possible shares of service under ``fair-sessions``, and the delays of calls.

    FAIRBENCH_DATA=FOLDER python studies session-gates-ceiling [SEED ...]

The script simulates the runs that results/tables/session-gates-ceiling.csv lacks, by default for
seeds 61 to 65, and writes two tables into docs/reference/gates.md. A table of shares lists the
worst well-behaved client's service in percent of its fair share, with all clients, without the
heavy client, or alone. A table of delays lists the calls' delay in each phase, such as prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S
from fairbench.metrics.contention import unhindered
from fairbench.metrics.fairness import fair_shares
from fairbench.metrics.records import FINISHED, Facts, Floats, Requests
from fairbench.sim.records import tables_of
from fairbench.sim.run import Simulation
from fairbench.workloads.plan import last_arrival_s
from fairbench_studies.kit.rows import TABLES, append_row, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables
from fairbench_studies.session_gates.table import DP, PAGE, RATES

TABLE = TABLES / "session-gates-ceiling.csv"
SEEDS = (61, 62, 63, 64, 65)
UNLIMITED = 100_000_000  # size of the KV pool in tokens, more than all sessions need
# ``SHARED`` maps each variant to the flags and settings that it changes; the defaults are gate
# fair-sessions and scheduler fcfs.
SHARED: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "fair-sessions": ({}, {}),
    "fair-sessions, vtc, 4 running": ({"scheduler": "vtc"}, {"engine.max_running_requests": 4}),
    "no gate, vtc, unlimited memory": (
        {"scheduler": "vtc", "gateway": "none"}, {"engine.max_total_tokens": UNLIMITED},
    ),
}  # fmt: skip
WITHOUT_HEAVY, ALONE = "fair-sessions, without the heavy client", "fair-sessions, client alone"
PHASES = ("gate", "queue", "prefill", "decode")
WELL_BEHAVED = (1, 2)  # numbers of the well-behaved clients; client 0 is heavy


class Measured(NamedTuple):
    """The service and fair share of each simulated client in tok/s, and its lost time by phase.

    ``service`` and ``fair`` have shape (n_clients,), and ``lost_s`` has shape (n_clients,
    n_phases).
    """

    service: Floats
    fair: Floats
    lost_s: Floats


def spec_of(scenario: str, seed: int, name: str) -> ExperimentSpec:
    """Return the experiment of a run in which all clients send requests."""
    own, settings = SHARED[name]
    flags: dict[str, Any] = {
        "workload": "sessions", "scenario": scenario, "dp": DP, "seed": seed,
        "scheduler": "fcfs", "gateway": "fair-sessions", "request_rate": RATES[scenario], **own,
    }  # fmt: skip
    return resolve(flags, settings)


def measure(spec: ExperimentSpec, kept: Sequence[int]) -> Measured:
    """Simulate only the clients ``kept``, in the measurement window of a run with all clients."""
    plans, source = spec.client_plans(), spec.source()
    simulation = Simulation(spec, tuple(plans[number] for number in kept), source)
    simulation.run()
    simulation.cluster.last_arrival_ps = round(last_arrival_s(plans, spec.seed) * PS_PER_S)
    simulation.cluster.settle()
    facts = simulation.facts()
    tables = tables_of(simulation.cluster.clients, simulation.logs)
    shares = fair_shares(tables.requests, tables.programs, tables.service, facts, facts.window)
    length_s = facts.window.length_s
    lost_s = lost_by_phase(tables.requests, facts)
    return Measured(shares.service / length_s, shares.entitlement / length_s, lost_s)


def lost_by_phase(requests: Requests, facts: Facts) -> Floats:
    """Return the delay (s) of the window's finished calls, compared with calls that run alone.

    The result has a row per client and a column per phase. All time at the gate and in an engine's
    queue counts as delay. The delay of prefill and decoding is the time beyond that of a lone call.
    """
    chosen = (requests.status == FINISHED) & facts.window.holds(requests.arrival_s)
    own = requests.take(chosen)
    alone = unhindered(requests, requests.output_tokens.astype(float), facts.horizon_s)
    decode_alone_s = alone.per_token_s * np.maximum(0, own.output_tokens - 1)
    routed_s = own.arrival_s if own.routed_s is None else own.routed_s
    lost = (
        routed_s - own.arrival_s,
        own.admitted_s - routed_s,
        own.first_token_s - own.admitted_s - alone.first_token_s[chosen],
        own.finish_s - own.first_token_s - decode_alone_s,
    )
    clients = len(facts.clients)
    sums = [np.bincount(own.client, np.maximum(0.0, one), clients) for one in lost]
    return np.stack(sums, axis=1)


def rows_of(scenario: str, seed: int) -> list[dict[str, Any]]:
    """Return the table rows of a scenario and seed, one row per run."""
    usual = spec_of(scenario, seed, "fair-sessions")
    good = list(WELL_BEHAVED)
    found = {name: measure(spec_of(scenario, seed, name), (0, *good)) for name in SHARED}
    fair = found["fair-sessions"].fair[good]
    rows = [
        _row(scenario, seed, name, one.service[good] / one.fair[good], one, good)
        for name, one in found.items()
    ]
    pair = measure(usual, good)
    rows.append(_row(scenario, seed, WITHOUT_HEAVY, pair.service / fair, pair, [0, 1]))
    each = [measure(usual, (number,)) for number in good]
    alone = Measured(*(np.concatenate(parts) for parts in zip(*each, strict=True)))
    rows.append(_row(scenario, seed, ALONE, alone.service / fair, alone, [0, 1]))
    return rows


def _row(
    scenario: str, seed: int, name: str, shares: Floats, run: Measured, good: list[int]
) -> dict[str, Any]:
    lost_s = run.lost_s[good].sum(axis=0)
    return {
        "scenario": scenario,
        "seed": seed,
        "run": name,
        "worst_share": float(shares.min()),
        "service_rate_tok_s": float(run.service.sum()),
        **{f"lost_{phase}_s": float(lost_s[at]) for at, phase in enumerate(PHASES)},
    }


def extend(seeds: Sequence[int]) -> None:
    """Simulate the scenarios and seeds that the CSV file lacks, and append their rows."""
    known = {(row["scenario"], row["seed"]) for row in stored_rows(TABLE)}
    for seed in seeds:
        for scenario in RATES:
            if (scenario, str(seed)) not in known:
                for row in rows_of(scenario, seed):
                    append_row(TABLE, row)


def mean(scenario: str, run: str, name: str, most: float = inf) -> float:
    """Return the mean of a table column over all seeds, with each value capped at ``most``."""
    rows = stored_rows(TABLE)
    mine = [row for row in rows if (row["scenario"], row["run"]) == (scenario, run)]
    return fmean(min(most, float(row[name])) for row in mine)


def ceiling_table() -> str:
    """Return the table of the worst client's service in percent of its fair share, by run."""
    body = []
    for run in (*SHARED, WITHOUT_HEAVY, ALONE):
        cells = [f"{mean(scenario, run, 'worst_share', 1.0):.0%}" for scenario in RATES]
        service = [f"{mean(scenario, run, 'service_rate_tok_s'):,.0f}" for scenario in RATES]
        body.append([run, *cells, *service])
    heads = [f"share, {scenario}" for scenario in RATES]
    return as_markdown(["run", *heads, *(f"service, {one}, tok/s" for one in RATES)], body)


def lost_table() -> str:
    """Return a table that divides the delays of calls under ``fair-sessions`` into phases."""
    body = []
    for scenario in RATES:
        lost = [mean(scenario, "fair-sessions", f"lost_{phase}_s") for phase in PHASES]
        body.append([scenario, *(f"{one / sum(lost):.0%}" for one in lost)])
    heads = ["waiting in the gate", "waiting in the engine", "prefill", "decoding"]
    return as_markdown(["scenario", *heads], body)


def main(*seeds: str) -> None:
    """Simulate missing runs, and write a table of service and a table of call delays."""
    extend(tuple(map(int, seeds)) or SEEDS)
    shares, lost = ceiling_table(), lost_table()
    write_tables(PAGE, {f"{TABLE.stem}/shares": shares, f"{TABLE.stem}/lost": lost})
