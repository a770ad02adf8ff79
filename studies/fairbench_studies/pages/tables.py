"""The tables of README.md and docs/, made from results/tables/*.csv.

    python studies tables                                   rewrites every marked block
    python studies tables collect NAME [LABEL::]RUN_DIR ... writes results/tables/NAME.csv
    python studies tables collect-sweep NAME SWEEP_DIR      writes the CSV file from a sweep

A marked block lies between ``<!-- table: NAME -->`` and ``<!-- end -->``. The scripts ``attacks``
and ``leaderboard`` write the tables of the pages about attacks and the leaderboard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fairbench_studies.kit.rows import ROOT, TABLES, read_cells
from fairbench_studies.kit.table_store import collect, collect_sweep, read, write
from fairbench_studies.kit.table_text import as_markdown, filled
from fairbench_studies.pages.brief import brief_runs, real_latency, real_service, sharing_brief
from fairbench_studies.pages.claims import claims, pools
from fairbench_studies.pages.metric_table import metric_table
from fairbench_studies.pages.paper import paper
from fairbench_studies.pages.runs import (
    default_loads,
    fig4,
    fig7,
    frontier_limit,
    gaps,
    headline,
    quantum,
)
from fairbench_studies.pages.table_parts import part
from fairbench_studies.pages.validation import measured, serving, serving_h100

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OF_SCRIPTS = ("attacks/", "memory-attacks/", "leaderboard/", "limit/", "session-gates", "stalls/")

MADE: dict[str, Callable[[], str]] = {
    "default-loads": lambda: default_loads("default-loads"),
    "default-loads-a10g": lambda: default_loads("default-loads-a10g"),
    "headline": headline,
    "metrics": metric_table,
    "paper": paper,
    "quantum": quantum,
    "frontier-limit": frontier_limit,
    "gaps": gaps,
    "fig7": fig7,
    "fig4": fig4,
    "measured": measured,
    "serving": serving,
    "serving-h100": serving_h100,
    "claims": claims,
    "pools": pools,
    "real-latency": real_latency,
    "real-service": real_service,
    "sharing-brief": sharing_brief,
}


def render(name: str) -> str:
    """Return the table ``name``; ``cells/W-S`` names the runs of workload W in scenario S."""
    kind, _, which = name.partition("/")
    if kind == "cells":
        rows = [row for row in read("cells") if f"{row['workload']}-{row['scenario']}" == which]
        return brief_runs(rows)
    if name in MADE:
        return part(name, MADE[name]())
    header, *body = read_cells(TABLES / f"{name}.csv")
    return part(name, as_markdown(header, body))


def rendered(text: str) -> str:
    """Return a document in which all generated tables are rendered again."""
    return filled(text, lambda name: None if name.startswith(OF_SCRIPTS) else render(name))


def main(*arguments: str) -> None:
    """Render all tables, or write a CSV file for the commands ``collect`` and ``collect-sweep``."""
    match arguments:
        case []:
            for document in DOCUMENTS:
                old = document.read_text(encoding="utf-8")
                if (new := rendered(old)) != old:
                    document.write_text(new, encoding="utf-8")
                    sys.stdout.write(f"{document.relative_to(ROOT)}\n")
        case ["collect", name, *runs]:
            write(name, collect(runs))
        case ["collect-sweep", name, folder]:
            write(name, collect_sweep(Path(folder)))
        case _:
            raise SystemExit(__doc__)
