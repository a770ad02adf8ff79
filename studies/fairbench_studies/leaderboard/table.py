"""The leaderboard: its runs in one file, a picture, and a table by configuration.

    fairbench sweep results/tables/leaderboard.toml
    python studies leaderboard results/runs/leaderboard [MORE ...]
    python studies leaderboard     # picture and tables again, of results/leaderboard.csv

Writes results/leaderboard.csv, a line a run, plots/leaderboard.svg, and the tables of
docs/appendix/leaderboard.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean, geometric_mean

from fairbench_studies.kit.rows import ROOT, read_rows
from fairbench_studies.kit.table_text import put_table

TABLE = ROOT / "results/leaderboard.csv"
FIGURE = ROOT / "plots/leaderboard.svg"
PAGE = ROOT / "docs/appendix/leaderboard.md"
BASELINE = "fcfs"
SHARE, SERVICE = "min_entitlement_best_ratio", "service_rate_tok_s"
LATENCY = "victim_p95_s"
# Okabe and Ito; shapes tell the kinds apart without colour.
KINDS = {
    "queue before the cluster": ("#d55e00", "s"),
    "fair local scheduler": ("#0072b2", "o"),
    "router that looks at prefixes": ("#009e73", "^"),
    "other": ("0.5", "x"),
}
FAIR = (
    *("vtc", "dlpm", "lcf", "mdrr", "equinox", "fairserve", "rpm"),
    *("d2lpm", "fair-finish", "preble-dlpm"),
)
PLAIN = (
    *(BASELINE, "lpm", "least-loaded+fcfs", "power-of-two+fcfs", "vtc-basic+fcfs"),
    *("round-robin+justitia", "round-robin+autellix"),
)
NAMED = {  # what is written beside its point, and where
    "d2lpm": (6, 3),
    "fair-finish": (6, 3),
    "preble-dlpm": (-62, 5),
    "oracle+lpm": (-18, 7),
    "preble": (7, -3),
    "llm-d+fcfs": (7, -3),
    "llm-d+fcfs behind dlpm by concurrency": (-84, -2),
    "llm-d+fcfs behind token-bucket by concurrency": (-24, -13),
    "dlpm": (-26, 2),
    "vtc": (-8, 7),
    "cache-aware+fcfs": (7, -4),
    "dynamo+fcfs": (7, -3),
    "lpm": (7, -8),
    "fcfs": (-4, -13),
    "vllm-router+fcfs": (-78, -3),
    "vtc-basic+fcfs": (-68, -3),
    "memserve+lpm": (7, -3),
    "round-robin+autellix": (7, -3),
    "round-robin+dlpm-upstream": (-6, 8),
}
LEFT_OUT = "client-round-robin+rpm"  # far away: it refuses most of what it is asked for
Values = dict[str, dict[str, float]]  # row -> place -> mean over seeds


def values(name: str) -> Values:
    """Return the mean of a metric over seeds, for each row and configuration."""
    found: defaultdict[str, defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    for row in read_rows(TABLE):
        seen = found[row["cell"]][row["place"].rpartition(" dp ")[0]]
        if row[name]:
            seen.append(float(row[name]))
    return {
        cell: {place: fmean(seen) if seen else float("nan") for place, seen in of.items()}
        for cell, of in found.items()
    }


def kind(row: str) -> str:
    """Return the kind of a row, one of ``KINDS``."""
    if " behind " in row:
        return "queue before the cluster"
    if row.rpartition("+")[2].removesuffix("-predict").removesuffix("-upstream") in FAIR:
        return "fair local scheduler"
    return "other" if row in PLAIN else "router that looks at prefixes"


def draw(shares: Values, services: Values) -> None:
    """Draw the minimum fair share of best total over throughput, a point per row."""
    from matplotlib import pyplot  # the tables need no figures' libraries

    figure, axes = pyplot.subplots(figsize=(8.5, 5.6))
    for which, (colour, marker) in KINDS.items():
        rows = [row for row in shares if kind(row) == which and row != LEFT_OUT]
        xs = [_ratio(services, row) for row in rows]
        ys = [fmean(shares[row].values()) for row in rows]
        axes.scatter(xs, ys, s=36, c=colour, marker=marker, label=which)
    for row, place in NAMED.items():
        if row in shares:
            at = _ratio(services, row), fmean(shares[row].values())
            name = re.sub(r"^llm-d\+fcfs behind (.*) by (\w+)$", r"\1 before llm-d", row)
            axes.annotate(name, at, place, textcoords="offset points", fontsize=7.5)
    axes.set(xlabel=f"service, times that of {BASELINE} (geometric mean of nine configurations)")
    axes.set(ylabel="minimum fair share of best total (mean of nine configurations)")
    axes.set(xlim=(0.7, 1.36), ylim=(0.4, 1))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    out = (
        f"{LEFT_OUT} is at {_ratio(services, LEFT_OUT):.2f}, {fmean(shares[LEFT_OUT].values()):.0%}"
    )
    axes.set_title(f"Simulated, A100, two replicas, five seeds; {out}", fontsize=9, loc="left")
    figure.tight_layout()
    with pyplot.rc_context({"svg.hashsalt": "fairbench"}):  # the same bytes each time
        figure.savefig(FIGURE, metadata={"Date": None})


def _ratio(services: Values, row: str) -> float:
    return geometric_mean(rate / services[BASELINE][at] for at, rate in services[row].items())


def by_place(shares: Values, services: Values, latencies: Values) -> str:
    """Return share / throughput / P95 as text, by row and configuration."""
    places = list(shares[BASELINE])
    lines = [f"| | {' | '.join(places)} |", f"|---|{'--:|' * len(places)}"]
    for row in sorted(shares, key=lambda row: -fmean(shares[row].values())):
        cells = []
        for place in places:
            late = latencies[row][place]
            shown = "-" if late != late else f"{late:,.0f}"  # nan: undefined
            share, rate = shares[row][place], services[row][place] / 1000
            cells.append(f"{share:.0%} / {rate:.1f} / {shown}")
        lines.append(f"| `{row}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def ranks() -> str:
    """Return the output of ``fairbench leaderboard`` for the file, as a table."""
    command = [sys.executable, "-m", "fairbench", "leaderboard", str(TABLE), "--format", "md"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("|"))


def put(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with each table replaced."""
    for name, table in tables.items():
        page = put_table(page, name, table)
    return page


def main(*stores: str) -> None:
    """Write the file from the stores, if given, then the picture and the page."""
    if stores:
        command = [sys.executable, "-m", "fairbench", "leaderboard", *stores, "--format", "csv"]
        TABLE.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    shares, services, latencies = (values(name) for name in (SHARE, SERVICE, LATENCY))
    draw(shares, services)
    tables = {"ranks": ranks(), "places": by_place(shares, services, latencies)}
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
