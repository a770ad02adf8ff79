"""Known attacks under many schedulers, as tables and a picture.

    python studies attacks DIR    # simulates missing runs, in two minutes of CPU per row
    python studies attacks        # draws the picture and the table again from results/attacks.csv

The script writes results/attacks.csv, plots/attacks.svg, and a table of docs/appendix/attacks.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench_studies.attacks.defences import (
    D2LPM_TENANTS,
    DEFENDED,
    LIMITED_SEED,
    LIMITING,
    LIMITS,
    LOWER,
    PAGE,
    REQUESTS,
    RESERVE,
    SEEDS,
    cell,
    interval_columns,
)
from fairbench_studies.kit.rows import ROOT, Row, read_rows, write_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = ROOT / "results/attacks.csv"
FIGURE = ROOT / "plots/attacks.svg"
FIRST_SEED = 100  # first seed of the runs; the defences were chosen with seed 0
LIMITED = "limited"
WIDTH_IN, HEIGHT_IN = 14.0, 7.2
GATEWAY = ("--scheduler", "llm-d+fcfs", "--saturation", "concurrency", "--gateway")


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(part for one in settings for part in ("--set", one))


LIMITED_BY = (
    *(part for name, one in LIMITING.items() for part in (f"--{name}", one)),
    *_set(*LIMITS),
)
FAIR_FINISH = ("--scheduler", "fair-finish", *_set(*DEFENDED))
ROWS: Mapping[str, Sequence[str]] = {
    **{
        name: ("--scheduler", name)
        for name in ("fcfs", "lpm", "preble", "vtc", "dlpm", "d2lpm", "fair-finish")
    },
    "token-bucket before llm-d": (*GATEWAY, "token-bucket"),
    "program-aware before llm-d": (*GATEWAY, "program-aware"),
    "dlpm before llm-d": (*GATEWAY, "dlpm"),
    "dlpm, tenants, before llm-d": (*GATEWAY, "dlpm", "--set", "dlpm.tenants=tree"),
    "d2lpm, tenants": ("--scheduler", "d2lpm", *_set(*D2LPM_TENANTS)),
    "fair-finish, defended": FAIR_FINISH,
    **{
        f"{name}, {LIMITED}": ("--scheduler", scheduler, *_set(*settings), *LIMITED_BY)
        for name, scheduler, settings in (
            *((name, name, ()) for name in ("fcfs", "lpm", "preble")),
            ("vtc, tenants", "vtc", ("vtc.tenants=tree",)),
            ("dlpm, tenants", "dlpm", D2LPM_TENANTS[1:]),
            ("d2lpm, tenants", "d2lpm", D2LPM_TENANTS),
            ("fair-finish, defended", "fair-finish", DEFENDED),
        )
    },
    **{
        f"{name}, {LIMITED} {how}": (
            "--scheduler",
            scheduler,
            *_set(*settings),
            *LIMITED_BY,
            *_set(*more),
        )
        for how, more in (
            ("in requests", (REQUESTS,)),
            ("more", (REQUESTS, LOWER)),
            ("with a reserve", (REQUESTS, LOWER, RESERVE)),
        )
        for name, scheduler, settings in (
            ("d2lpm, tenants", "d2lpm", D2LPM_TENANTS),
            ("fair-finish, defended", "fair-finish", DEFENDED),
        )
    },
}
# A run lasts a multiple of the attack's period, so that the attacker and an honest client send
# equally many programs.
ATTACKS: Mapping[float, Sequence[str]] = {
    100.0: (
        *("sybil", "fresh-names", "padding-3k", "padding-20k", "victims-prefix", "small-requests"),
        *("leave-and-rejoin", "large-reservations", "one-at-a-time"),
    ),
    120.0: ("bursts", "long-context-bursts", "long-answers", "long-decoder", "long-answer-bursts"),
}
MEASURES = ("finished", "kept", "p95", "gain")
HARMLESS = ("leave-and-rejoin", "large-reservations", "one-at-a-time", "bursts")
COLUMNS = (  # columns of the table in the docs; results/attacks.csv has all schedulers
    *("fcfs", "lpm", "vtc", "fair-finish, defended"),
    "fair-finish, defended, limited with a reserve",
)


def simulate(folder: Path) -> list[dict[str, str]]:
    """Return a table row per attack and scheduler. Runs missing in ``folder`` are simulated."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, how in ROWS.items():
        for duration, attacks in ATTACKS.items():
            file = folder / f"{name} {duration:g}.json".replace(" ", "-")
            if not file.exists():
                sys.stderr.write(f"{name}, {duration:g} s\n")
                first = LIMITED_SEED if LIMITED in name else FIRST_SEED
                file.write_bytes(_attack(how, duration, attacks, first))
            rows += [_row(name, one) for one in json.loads(file.read_text("utf-8"))["attacks"]]
    return rows


def _attack(how: Sequence[str], duration_s: float, attacks: Sequence[str], first: int) -> bytes:
    seeds = ("--num-runs", str(SEEDS), "--seed", str(first), "--duration", f"{duration_s:g}")
    command = [sys.executable, "-m", "fairbench", "attack", *attacks, *how, *seeds, "--json"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _row(name: str, one: Mapping[str, Any]) -> dict[str, str]:
    row = {"scheduler": name, "attack": one["attack"], "p95_more": str(one["more"]).lower()}
    for measure in MEASURES:
        row |= interval_columns(one, measure)
    return row


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the table for the documentation, with a row per attack that harms other clients."""
    found: dict[str, dict[str, str]] = {}
    for row in (row for row in rows if row["attack"] not in HARMLESS):
        found.setdefault(row["attack"], {})[row["scheduler"]] = cell(row, "kept")
    body = ([f"`{name}`", *(of[one] for one in COLUMNS)] for name, of in found.items())
    return {"attacks/kept": as_markdown(["attack", *COLUMNS], body)}


def draw(rows: Sequence[Row]) -> None:
    """Draw heat maps of victims' finished programs and attackers' gain, by scheduler and attack."""
    # Seaborn is imported here, because the tables need no plotting package.
    from seaborn import heatmap

    from fairbench_papers.style import panels, paper_style, save

    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    about = (
        ("finished", "RdBu", "victims' finished programs, beside the honest twin's"),
        ("gain", "RdBu_r", "attacker's useful service, times its twin's"),
    )
    with paper_style():
        figure, (sides,) = panels(1, len(about), WIDTH_IN, HEIGHT_IN, sharey=True)
        for axes, (measure, colours, title) in zip(sides, about, strict=True):
            values = [
                [float(row[f"{measure}_mean"] or "nan") for row in rows if row["scheduler"] == name]
                for name in names
            ]
            heatmap(
                values, cmap=colours, vmin=0, vmax=2, annot=True, fmt=".2f", cbar=False,
                annot_kws={"size": 7.5}, yticklabels=names, ax=axes,
            )  # fmt: skip
            axes.set_xticks(axes.get_xticks(), attacks, rotation=40, ha="right", fontsize=8)
            axes.tick_params("y", labelsize=8)
            axes.set_title(title, fontsize=9, loc="left")
        origin = f"Simulated: judges, A100, two replicas, three victims; mean of {SEEDS} seeds"
        figure.supxlabel(f"{origin}; 1: no harm", fontsize=8)
        save(figure, [FIGURE])


def main(*folders: str) -> None:
    """Simulate the attacks if a folder is given, and write the picture and the page's table."""
    if folders:
        write_rows(TABLE, simulate(Path(folders[0])))
    rows = read_rows(TABLE)
    draw(rows)
    write_tables(PAGE, tables(rows))
