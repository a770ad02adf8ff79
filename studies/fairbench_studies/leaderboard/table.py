"""The leaderboard: a file of runs, a picture, and a table of ranks.

    fairbench sweep results/tables/leaderboard.toml
    python studies leaderboard results/runs/leaderboard [MORE ...]
    python studies leaderboard     # writes the picture and the tables from results/leaderboard.csv

The script writes results/leaderboard.csv (a line per run), plots/leaderboard.svg, and the table of
docs/appendix/leaderboard.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from statistics import fmean, geometric_mean

from fairbench_studies.kit.rows import ROOT, read_rows
from fairbench_studies.kit.table_text import write_tables
from fairbench_studies.leaderboard.picture import BASELINE, Point, draw

TABLE = ROOT / "results/leaderboard.csv"
PAGE = ROOT / "docs/appendix/leaderboard.md"
SHARE, SERVICE = "min_entitlement_best_ratio", "service_rate_tok_s"
SHOWN = (
    *("fair-finish", "preble-dlpm", "d2lpm", "llm-d+fcfs behind dlpm by concurrency", "preble"),
    *("llm-d+fcfs", "dlpm", "vtc", "lpm", "fcfs"),
)
# ``Values`` holds means of a metric over seeds, by leaderboard row and configuration.
Values = dict[str, dict[str, float]]


def values(name: str) -> Values:
    """Return a metric's mean over seeds, for each leaderboard row and configuration."""
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


def points(shares: Values, services: Values) -> list[Point]:
    """Return the rows of the leaderboard as points, the fairest first."""
    found = [
        Point(
            row,
            geometric_mean(rate / services[BASELINE][at] for at, rate in services[row].items()),
            fmean(shares[row].values()),
        )
        for row in shares
    ]
    return sorted(found, key=lambda point: -point.share)


def ranks() -> str:
    """Return the leaderboard's table, reduced to the rows in ``SHOWN``."""
    command = [sys.executable, "-m", "fairbench", "leaderboard", str(TABLE), "--format", "md"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    table = [line for line in done.stdout.splitlines(keepends=True) if line.startswith("|")]
    rows = (line for line in table[2:] if line.split("`")[1] in SHOWN)
    return "".join([*table[:2], *rows])


def main(*stores: str) -> None:
    """Update the CSV file from folders of runs, if given; write the picture and the ranks."""
    if stores:
        command = [sys.executable, "-m", "fairbench", "leaderboard", *stores, "--format", "csv"]
        TABLE.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    draw(points(values(SHARE), values(SERVICE)))
    write_tables(PAGE, {"leaderboard/ranks": ranks()})
