"""Gates for agent sessions on four replicas, with a heavy client, at three loads.

    FAIRBENCH_DATA=FOLDER python studies session-gates [SEED ...]

Simulates the runs that results/tables/session-gates.csv lacks (seeds 61 to 63 unless seeds are
given), writes the table of means into docs/reference/gates.md, and draws plots/session-gates.svg.
The CSV grows by a line per run, so that an interrupted study continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.figures.style import panels, paper_style, save
from fairbench.sim.run import simulate
from fairbench_studies.kit.rows import ROOT, TABLES, Row, extend_rows, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = TABLES / "session-gates.csv"
PAGE = ROOT / "docs/reference/gates.md"
FIGURE = ROOT / "plots/session-gates.svg"
DP = 4
SEEDS = (61, 62, 63)
RATES = {"s1": 0.003 * DP, "s2": 0.006 * DP}  # default rates, in sessions/s of a client
LOADS = (1.0, 0.5, 2.0)  # times the default rate
# name -> scheduler, gateway ("none" for no gate) and settings
GATES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "no gate, fcfs": ("fcfs", "none", {}),
    "no gate, vtc": ("vtc", "none", {}),
    "session-cap, 24 open": ("fcfs", "session-cap", {"session-cap.most": 24}),
    "thunderagent": ("fcfs", "thunderagent", {}),
    "thunderagent-llmd origin": (
        "fcfs", "thunderagent-llmd", {"thunderagent-llmd.resume": "origin"},
    ),
    "fair-sessions": ("fcfs", "fair-sessions", {}),
}  # fmt: skip
WAITS_S = (200, 500, 1000, 2000)  # ticks of the picture
IDENTITY = ("scenario", "load", "gate", "seed")
NUMBERS = (
    *("service_rate_tok_s", "cache_hit_rate", "max_turn_wait_s", "p99_ttft_ms"),
    *("min_entitlement_ratio", "min_share_60s", "victim_session_slowdown_p95"),
    *("victim_p50_s", "time_to_90pct_s"),
)


def measured(scenario: str, load: float, gate: str, seed: int) -> dict[str, Any]:
    """Return the row of one simulated run."""
    scheduler, gateway, settings = GATES[gate]
    flags: dict[str, Any] = {
        "workload": "sessions", "scenario": scenario, "dp": DP, "seed": seed,
        "scheduler": scheduler, "gateway": gateway, "request_rate": load * RATES[scenario],
    }  # fmt: skip
    summary = simulate(resolve(flags, settings)).summary
    return {
        **dict(zip(IDENTITY, (scenario, f"{load:g}", gate, seed), strict=True)),
        **{name: summary.get(name) for name in NUMBERS},
    }


def points(seeds: tuple[int, ...]) -> Iterator[tuple[str, float, str, int]]:
    """Yield scenario, load, gate and seed of each run, the default load first."""
    for load in LOADS:
        for seed in seeds:
            for scenario in RATES:
                for gate in GATES:
                    yield scenario, load, gate, seed


Means = Mapping[tuple[str, str, str], Mapping[str, float]]
"""The means over seeds, by scenario, load and gate."""


def means() -> Means:
    """Return the means of the stored runs."""
    found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in stored_rows(TABLE):
        found.setdefault((row["scenario"], row["load"], row["gate"]), []).append(row)
    return {key: {name: _mean(mine, name) for name in NUMBERS} for key, mine in found.items()}


def _mean(rows: Sequence[Row], name: str) -> float:
    """Return the mean of the rows with a value; nan if there is none (nobody waited)."""
    values = [float(row[name]) for row in rows if row[name]]
    return fmean(values) if values else nan


def gate_table(found: Means, load: str = "1") -> str:
    """Return the table of one load: a row per scenario and gate."""
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


def draw(found: Means) -> None:
    """Draw service over the longest wait of a call, a panel per scenario, at the default load."""
    marks = dict(zip(GATES, "ovsD^*", strict=True))
    with paper_style():
        figure, (axes,) = panels(1, len(RATES), 6.6, 2.9, sharey=True)
        for panel, scenario in zip(axes, RATES, strict=True):
            for gate, mark in marks.items():
                one = found[scenario, "1", gate]
                panel.plot(
                    one["max_turn_wait_s"], one["service_rate_tok_s"] / 1000, mark,
                    markersize=9 if mark == "*" else 6, label=gate,
                )  # fmt: skip
            panel.set_xscale("log")
            panel.set_xticks(WAITS_S, [f"{one:,}" for one in WAITS_S])
            panel.minorticks_off()
            panel.set_xlim(WAITS_S[0], WAITS_S[-1])
            panel.set_title(f"sessions {scenario}", fontsize=9)
            panel.set_xlabel("longest wait of a call, s", fontsize=8)
        axes[0].set_ylabel("service, k tok/s", fontsize=8)
        most = max(one["service_rate_tok_s"] for (_, load, _), one in found.items() if load == "1")
        axes[0].set_ylim(0, 1.1 * most / 1000)
        axes[-1].legend(fontsize=7, loc="lower left")
        save(figure, [FIGURE])


def main(*seeds: str) -> None:
    """Simulate what is missing, write the table and draw the picture."""
    extend_rows(TABLE, IDENTITY, points(tuple(map(int, seeds)) or SEEDS), measured)
    found = means()
    write_tables(PAGE, {"session-gates/default": gate_table(found)})
    draw(found)
