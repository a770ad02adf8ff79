"""The trade-off between met deadlines and fair shares, as a table and a figure.

    fairbench sweep results/tables/deadlines.toml
    python studies deadlines results/runs/deadlines [SWEEP.toml]

The script writes results/tables/deadlines.csv (means over seeds, with rows for each scheduler) and
plots/deadlines.svg. The figure shows, for each load, the fraction of requests that meet their
deadlines. Its curves are the heavy client, and the well-behaved client with the lowest fraction.
Another sweep file with the same workload, but other schedulers, may be given as ``SWEEP.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import points, read_sweep
from fairbench.results.store import runs_in
from fairbench_papers.style import panels, paper_style, save
from fairbench_studies.kit.rows import ROOT, write_rows

SWEEP = ROOT / "results/tables/deadlines.toml"
TABLE = ROOT / "results/tables/deadlines.csv"
FIGURE = ROOT / "plots/deadlines.svg"
CAPACITY = 0.37  # conversations/s of each client at which lpm saturates a replica
KEPT = 0.9  # a client collapses if less than this fraction of its requests meets the deadlines
ORDER = (  # schedulers that come first in tables; other schedulers follow by name
    *("fcfs", "priority", "vtc", "dlpm", "dlpm-edf", "dlpm-edf within=credit"),
    *("edf-textbook", "edf", "edf-dlpm", "niyama"),
)
SHOWN = {  # title and number format of each metric in the table
    "kept_worst": ("in time, worst well-behaved", ".0%"),
    "kept_flood": ("in time, the flood", ".0%"),
    "worst_share": ("min. fair share of goodput", ".2f"),
    "goodput_tok_s": ("goodput, tok/s", ",.0f"),
    "wasted": ("computed in vain", ".0%"),
}
NOTE = (
    "In brackets: the load at which the worst well-behaved client meets fewer than "
    f"{KEPT:.0%} of its deadlines. Simulated; means over the seeds."
)
CLIENTS = {
    "kept_worst": "worst well-behaved client, % in time",
    "kept_flood": "heavy client, % in time",
}


def name_of(spec: ExperimentSpec) -> str:
    """Return the local scheduler's name and its settings that differ from the defaults."""
    within = spec.settings["dlpm-edf.within"] if spec.local == "dlpm-edf" else "client"
    # ``quantum`` is None for schedulers other than dlpm-hold.
    quantum = spec.settings.get("dlpm-hold.quantum") or None
    told = {"within": within if within != "client" else None, "quantum": quantum}
    set_ = [f"{name}={value}" for name, value in told.items() if value is not None]
    return " ".join([spec.local, *set_])


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that the table shows for a run."""
    clients = summary["clients"]
    kept = [one["goodput_ratio"] for one in clients if not one["misbehaving"]]
    return {
        # ``goodput_ratio`` is None for a client without requests.
        "kept_worst": min(one for one in kept if one is not None),
        "kept_flood": next(one["goodput_ratio"] for one in clients if one["misbehaving"]),
        "worst_share": summary["goodput_worst_share"],
        "goodput_tok_s": summary["goodput_tok_s"],
        "wasted": summary["goodput_wasted_ratio"],
    }


Curves = Mapping[str, Mapping[float, Mapping[str, float]]]
"""Mean metrics by scheduler and load, over the seeds with which all schedulers have a run."""


def ordered(names: set[str]) -> list[str]:
    """Return the schedulers in the order in which tables and figures show them."""
    return [*(name for name in ORDER if name in names), *sorted(names - set(ORDER))]


def curves(store: Path, sweep: Path) -> Curves:
    """Return the mean metrics of the sweep's runs, by scheduler and load."""
    specs = {identity(spec): spec for spec in points(read_sweep(str(sweep)))}
    names = ordered({name_of(spec) for spec in specs.values()})
    found: dict[str, dict[float, dict[int, dict[str, float]]]] = {name: {} for name in names}
    for run in runs_in(store / "runs"):
        spec = specs.get(run.manifest["spec_identity"])
        if spec is None:
            continue  # the run does not belong to this sweep
        load = round((spec.request_rate or 0.0) / CAPACITY, 2)
        found[name_of(spec)].setdefault(load, {})[spec.seed] = numbers(run.summary)
    made = [of for of in found.values() if of]
    loads = sorted({load for of in made for load in of})
    every = {load: set.intersection(*(set(of.get(load, ())) for of in made)) for load in loads}
    return {
        name: {
            load: {key: fmean(of[load][seed][key] for seed in every[load]) for key in SHOWN}
            for load in loads
            if every[load]
        }
        for name, of in found.items()
        if of
    }


def collapse(curve: Mapping[float, Mapping[str, float]]) -> str:
    """Return the interpolated load at which the worst client's on-time fraction is ``KEPT``."""
    loads = list(curve)
    for before, after in pairwise(loads):
        high, low = curve[before]["kept_worst"], curve[after]["kept_worst"]
        if high >= KEPT > low:
            return f"{before + (after - before) * (high - KEPT) / (high - low):.2f}"
    held = curve[loads[-1]]["kept_worst"] >= KEPT
    return f"above {loads[-1]:g}" if held else f"below {loads[0]:g}"


def write(found: Curves) -> None:
    """Write the table, with a row per scheduler and metric, and a column per load."""
    loads = next(iter(found.values()))
    rows = [
        {
            "scheduler": f"`{name}`",
            "collapses at": collapse(curve),
            "": what,
            **{f"{load:g}": format(curve[load][key], form) for load in loads},
        }
        for name, curve in found.items()
        for key, (what, form) in SHOWN.items()
    ]
    write_rows(TABLE, rows)


def draw(found: Curves) -> None:
    """Draw a heat map for each client, with a row per scheduler and a column per load."""
    from seaborn import heatmap

    loads = list(next(iter(found.values())))
    with paper_style():
        figure, (axes,) = panels(1, len(CLIENTS), 8.0, 0.9 + 0.27 * len(found), sharey=True)
        for panel, (key, title) in zip(axes, CLIENTS.items(), strict=True):
            values = [[100 * curve[load][key] for load in loads] for curve in found.values()]
            heatmap(
                values, annot=True, fmt=".0f", vmin=0, vmax=100, cmap="viridis", cbar=False,
                linewidths=0.5, annot_kws={"size": 8}, ax=panel,
            )  # fmt: skip
            panel.set_xticks(
                [at + 0.5 for at in range(len(loads))], [f"{load:g}" for load in loads]
            )
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("load, times the capacity", fontsize=8)
        names = [f"{name} ({collapse(curve)})" for name, curve in found.items()]
        axes[0].set_yticks([at + 0.5 for at in range(len(names))], names, rotation=0, fontsize=8)
        figure.supxlabel(NOTE, fontsize=7)
        save(figure, [FIGURE])


def main(folder: str, sweep: str = str(SWEEP)) -> None:
    """Write the table and draw the figure of deadlines met, from the runs in ``folder``."""
    found = curves(Path(folder), Path(sweep))
    write(found)
    draw(found)
