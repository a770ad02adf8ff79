"""A comparison of gates for agent sessions: four replicas, a heavy client, and four loads.

    FAIRBENCH_DATA=FOLDER python studies session-gates [SEED ...]

The script simulates the runs that results/tables/session-gates.csv lacks, by default for seeds 61
to 65. The script writes two tables with means over seeds into docs/reference/gates.md, and draws
the figure plots/session-gates.svg. The CSV file grows by a line per run, so an interrupted study
continues after its last line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_papers.style import panels, paper_style, save
from fairbench_studies.kit.rows import ROOT, TABLES, Row, extend_rows, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = TABLES / "session-gates.csv"
PAGE = ROOT / "docs/reference/gates.md"
FIGURE = ROOT / "plots/session-gates.svg"
DP = 4
SEEDS = (61, 62, 63, 64, 65)
RATES = {"s1": 0.003 * DP, "s2": 0.006 * DP}  # default rate of a client, in sessions per second
LOADS = (1.0, 0.25, 0.5, 2.0)  # loads as multiples of the default rate
# ``GATES`` maps each row of the table to its flags and settings; the default scheduler is fcfs.
GATES: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "no gate, fcfs": ({}, {}),
    "no gate, vtc": ({"scheduler": "vtc"}, {}),
    "no gate, hrrn": ({"scheduler": "round-robin+hrrn"}, {}),
    "no gate, fair-finish": ({"scheduler": "fair-finish"}, {}),
    "no gate, continuum-ttl": ({"eviction": "continuum-ttl"}, {}),
    "session-cap, 24 open": ({"gateway": "session-cap"}, {"session-cap.most": 24}),
    "thunderagent": ({"gateway": "thunderagent"}, {}),
    "thunderagent-llmd origin": (
        {"gateway": "thunderagent-llmd"}, {"thunderagent-llmd.resume": "origin"},
    ),
    "fair-sessions": ({"gateway": "fair-sessions"}, {}),
}  # fmt: skip
SHOWN_LOADS = ("0.25", "0.5", "1", "2")
WAITS_S = (200, 1000, 5000)  # labelled ticks of the x axis, in seconds
MARKS = "ovsD^PXp*"  # markers of the gates in the figure
SHARE = "share of the worst client"
IDENTITY = ("scenario", "load", "gate", "seed")
NUMBERS = (
    *("service_rate_tok_s", "cache_hit_rate", "max_turn_wait_s", "p99_ttft_ms"),
    *("min_entitlement_ratio", "min_share_60s", "victim_session_slowdown_p95"),
    *("victim_p50_s", "time_to_90pct_s"),
)


def measured(scenario: str, load: float, gate: str, seed: int) -> dict[str, Any]:
    """Simulate a run, and return its table row."""
    own, settings = GATES[gate]
    flags: dict[str, Any] = {
        "workload": "sessions", "scenario": scenario, "dp": DP, "seed": seed,
        "scheduler": "fcfs", "gateway": "none", "request_rate": load * RATES[scenario], **own,
    }  # fmt: skip
    summary = simulate(resolve(flags, settings)).summary
    return {
        **dict(zip(IDENTITY, (scenario, f"{load:g}", gate, seed), strict=True)),
        **{name: summary.get(name) for name in NUMBERS},
    }


def points(seeds: tuple[int, ...]) -> Iterator[tuple[str, float, str, int]]:
    """Yield scenario, load, gate and seed of each run, with the default load first."""
    for load in LOADS:
        for seed in seeds:
            for scenario in RATES:
                for gate in GATES:
                    yield scenario, load, gate, seed


Means = Mapping[tuple[str, str, str], Mapping[str, float]]
"""Mean metrics over all seeds, by scenario, load and gate."""


def means() -> Means:
    """Return the means over seeds of all runs in results/tables/session-gates.csv."""
    found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in stored_rows(TABLE):
        found.setdefault((row["scenario"], row["load"], row["gate"]), []).append(row)
    return {key: {name: _mean(mine, name) for name in NUMBERS} for key, mine in found.items()}


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [float(row[name]) for row in rows if row[name]]
    return fmean(values) if values else nan


def gate_table(found: Means, load: str = "1") -> str:
    """Return the table for one load, with a row per scenario and gate."""
    body = []
    for scenario in RATES:
        usual = found[scenario, load, "no gate, fcfs"]["service_rate_tok_s"]
        for gate in GATES:
            one = found[scenario, load, gate]
            waits = [f"{one['max_turn_wait_s']:,.0f}", f"{one['p99_ttft_ms'] / 1000:,.0f}"]
            shares = [f"{one['min_entitlement_ratio']:.0%}", f"{one['min_share_60s']:.0%}"]
            service = [f"{one['service_rate_tok_s'] / usual:.2f}", f"{one['cache_hit_rate']:.0%}"]
            slowdown = f"{one['victim_session_slowdown_p95']:.1f}"
            body.append([scenario, gate, *service, *waits, *shares, slowdown])
    heads = ["scenario", "gate", "service", "hits", "longest wait, s", "P99 TTFT, s"]
    return as_markdown([*heads, "min. fair share", "worst 60 s", "slowdown P95"], body)


def load_table(found: Means) -> str:
    """Return the table for all loads: service relative to runs without a gate, and longest wait."""
    body = []
    for scenario in RATES:
        for gate in GATES:
            cells = []
            for load in SHOWN_LOADS:
                usual = found[scenario, load, "no gate, fcfs"]["service_rate_tok_s"]
                one = found[scenario, load, gate]
                service = one["service_rate_tok_s"] / usual
                cells.append(f"{service:.2f} ({one['max_turn_wait_s']:,.0f} s)")
            body.append([scenario, gate, *cells])
    return as_markdown(["scenario", "gate", *(f"load {one}" for one in SHOWN_LOADS)], body)


def draw(found: Means) -> None:
    """Plot service against the longest wait of a call, and against the minimum fair share.

    The panels of a column show one scenario, either at the default load or at twice that load.
    """
    columns = [(scenario, load) for scenario in RATES for load in ("1", "2")]
    names = {"max_turn_wait_s": "longest wait of a call, s", "min_entitlement_ratio": SHARE}
    with paper_style():
        figure, grid = panels(len(names), len(columns), 9.6, 5.4, sharey=True)
        for row, (name, label) in zip(grid, names.items(), strict=True):
            for panel, (scenario, load) in zip(row, columns, strict=True):
                _draw_panel(panel, {gate: found[scenario, load, gate] for gate in GATES}, name)
                panel.set_title(f"{scenario}, load {load}", fontsize=9)
                panel.set_xlabel(label, fontsize=8)
            row[0].set_ylabel("service, k tok/s", fontsize=8)
            row[0].set_ylim(0, 45)
        figure.legend(
            *grid[0][0].get_legend_handles_labels(),
            fontsize=7, ncols=5, loc="outside lower center",
        )  # fmt: skip
        save(figure, [FIGURE])


def _draw_panel(panel: Any, gates: Mapping[str, Mapping[str, float]], name: str) -> None:
    for (gate, one), mark in zip(gates.items(), MARKS, strict=True):
        size, service = 9 if mark == "*" else 6, one["service_rate_tok_s"] / 1000
        panel.plot(one[name], service, mark, markersize=size, label=gate)
    if name == "max_turn_wait_s":
        panel.set_xscale("log")
        panel.set_xticks(WAITS_S, [f"{one:,}" for one in WAITS_S])
        panel.minorticks_off()
        panel.set_xlim(100, 8000)
    else:
        panel.set_xlim(0, 1)


def main(*seeds: str) -> None:
    """Simulate the missing runs, write the tables on session gates, and draw the figure."""
    extend_rows(TABLE, IDENTITY, points(tuple(map(int, seeds)) or SEEDS), measured)
    found = means()
    tables = {"session-gates/default": gate_table(found), "session-gates/loads": load_table(found)}
    write_tables(PAGE, tables)
    draw(found)
