"""Waits of clients that join late, for several initial credits of DLPM.

    python studies newcomers

The script makes the missing runs of the sweep results/tables/newcomers.toml, and writes
results/seeds/newcomers.csv and results/tables/newcomers.csv.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import StoredRun
from fairbench_studies.dlpm.seeds import SEEDS
from fairbench_studies.kit.rows import TABLES
from fairbench_studies.kit.seeds import completed_cells, derived, value_at, write_seeds
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.values import mean_of

LATE = 12  # number of clients, of 30, that count as joining late


def first_waits(run: StoredRun) -> Floats:
    """Return the time of each client's first arrival and the wait for its first output token.

    The array has shape (clients, 2), with arrival times and waits in seconds. A client without any
    output token has an infinite wait.
    """
    found: Floats = derived(run, "first waits", lambda: _first_waits(run))
    return found


def _first_waits(run: StoredRun) -> Floats:
    table = run.table("requests")
    clients = table["client"].to_numpy(zero_copy_only=False)
    arrival_s, first_s = (table[name].to_numpy() for name in ("arrival_s", "first_token_s"))
    rows = []
    for client in np.unique(clients):
        mine = clients == client
        joined_s = arrival_s[mine].min()
        rows.append((joined_s, np.nanmin(first_s[mine], initial=np.inf) - joined_s))
    return np.array(rows)


def late_waits(run: StoredRun) -> list[float]:
    """Return the waits of the clients that joined last, in seconds and ascending order."""
    waits = first_waits(run)
    return sorted(float(wait) for _, wait in waits[np.argsort(waits[:, 0])][-LATE:])


def row(cell: SchedulerResults) -> dict[str, str]:
    """Return a table row for a scheduler, with means over the seeds."""
    waits = [late_waits(one.run) for one in cell.runs]
    experiment = cell.runs[0].experiment
    quantum = value_at(experiment, "settings.dlpm.quantum")
    is_dlpm = cell.combined["scheduler"] == "dlpm"
    return {
        "scheduler": f"`{cell.combined['scheduler']}`",
        "Q^u, tokens": f"{quantum:,}" if is_dlpm else "-",
        "join": value_at(experiment, "settings.dlpm.join") or "zero" if is_dlpm else "-",
        "service, tok/s": f"{mean_of(cell, 'service_rate_tok_s') or 0:,.0f}",
        "Jain's index": f"{mean_of(cell, 'jain_index') or 0:.3f}",
        "last 12: median wait, s": f"{fmean(map(median, waits)):,.0f}",
        "longest, s": f"{fmean(map(max, waits)):,.0f}",
    }


def table(cells: Sequence[SchedulerResults]) -> list[dict[str, str]]:
    """Return the table of waits, with a row per scheduler and setting."""
    return [row(cell) for cell in cells]


def main() -> None:
    """Simulate the missing runs, then write the values of each seed and the table of waits."""
    _, cells = completed_cells(str(TABLES / "newcomers.toml"))
    rows = table(cells)
    write_seeds(SEEDS / "newcomers.csv", cells)
    write("newcomers", rows)
