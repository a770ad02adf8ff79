"""The cost of meeting deadlines in fair shares, and the reverse: table and figure.

    fairbench sweep results/tables/deadlines.toml
    python studies deadlines results/runs/deadlines [SWEEP.toml]

The schedulers are those of the sweep: another sweep of the same load may name any. The script
writes results/tables/deadlines.csv (means over seeds) and plots/deadlines.svg. Each panel shows one
scheduler: the worst well-behaved client's attainment against the heavy client's, as the load rises,
with the other schedulers in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import points, read_sweep
from fairbench.figures.style import panels, paper_style, save
from fairbench.report.palette import BLUE
from fairbench.results.store import runs_in
from fairbench_studies.kit.rows import ROOT, write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEEP = ROOT / "results/tables/deadlines.toml"
TABLE = ROOT / "results/tables/deadlines.csv"
FIGURE = ROOT / "plots/deadlines.svg"
CAPACITY = 0.37  # conversations/s of each interactive client that a replica completes under lpm
KEPT = 0.9  # fraction of a well-behaved client's requests in time, below which it has collapsed
ORDER = (  # these first, then all others by name
    *("fcfs", "priority", "vtc", "dlpm", "dlpm-edf", "dlpm-edf within=credit"),
    *("edf-textbook", "edf", "edf-dlpm", "niyama"),
)
SHOWN = {  # key -> its name and format
    "kept_worst": ("in time, worst well-behaved", ".0%"),
    "kept_flood": ("in time, the flood", ".0%"),
    "worst_share": ("min. fair share of goodput", ".2f"),
    "goodput_tok_s": ("goodput, tok/s", ",.0f"),
    "wasted": ("computed in vain", ".0%"),
}
COLUMNS, WIDTH_IN, ROW_IN = 5, 11.0, 2.45


def name_of(spec: ExperimentSpec) -> str:
    """Return the local scheduler with its settings that differ from the defaults."""
    within = spec.settings["dlpm-edf.within"] if spec.local == "dlpm-edf" else "client"
    quantum = spec.settings.get("dlpm-hold.quantum") or None  # 0 means the quantum by its rule
    told = {"within": within if within != "client" else None, "quantum": quantum}
    set_ = [f"{name}={value}" for name, value in told.items() if value is not None]
    return " ".join([spec.local, *set_])


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that are shown for a run."""
    clients = summary["clients"]
    kept = [one["goodput_ratio"] for one in clients if not one["misbehaving"]]
    return {
        "kept_worst": min(one for one in kept if one is not None),  # None if it requested nothing
        "kept_flood": next(one["goodput_ratio"] for one in clients if one["misbehaving"]),
        "worst_share": summary["goodput_worst_share"],
        "goodput_tok_s": summary["goodput_tok_s"],
        "wasted": summary["goodput_wasted_ratio"],
    }


Curves = Mapping[str, Mapping[float, Mapping[str, float]]]
"""Means by scheduler and load, over the seeds that every scheduler has at that load."""


def ordered(names: set[str]) -> list[str]:
    """Return the schedulers in order of display."""
    return [*(name for name in ORDER if name in names), *sorted(names - set(ORDER))]


def curves(store: Path, sweep: Path) -> Curves:
    """Return the results of the sweep's runs."""
    specs = {identity(spec): spec for spec in points(read_sweep(str(sweep)))}
    names = ordered({name_of(spec) for spec in specs.values()})
    found: dict[str, dict[float, dict[int, dict[str, float]]]] = {name: {} for name in names}
    for run in runs_in(store / "runs"):
        spec = specs.get(run.manifest["spec_identity"])
        if spec is None:
            continue  # the run belongs to another form of the sweep
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
    """Return the interpolated load at which the worst client falls below ``KEPT``."""
    loads = list(curve)
    for before, after in pairwise(loads):
        high, low = curve[before]["kept_worst"], curve[after]["kept_worst"]
        if high >= KEPT > low:
            return f"{before + (after - before) * (high - KEPT) / (high - low):.2f}"
    held = curve[loads[-1]]["kept_worst"] >= KEPT
    return f"above {loads[-1]:g}" if held else f"below {loads[0]:g}"


def write(found: Curves) -> None:
    """Write a row for each scheduler and number, a column for each load."""
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
    """Draw a panel for each scheduler."""
    rows = -(-len(found) // COLUMNS)
    with paper_style():
        figure, grid = panels(rows, COLUMNS, WIDTH_IN, ROW_IN * rows, sharex=True, sharey=True)
        for axes in grid.flat[len(found) :]:
            axes.remove()
        for at, (axes, name) in enumerate(zip(grid.flat, found, strict=False)):
            for other in found.values():
                axes.plot(*_line(other), color="0.7", linewidth=0.8, zorder=1)
            axes.plot(*_line(found[name]), color=BLUE.colour, marker="o", zorder=2)
            _loads(axes, found[name])
            axes.set_title(f"{name}\n({collapse(found[name])})", fontsize=9)
            axes.set(xlim=(-0.05, 1.2), ylim=(-0.05, 1.15), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            axes.grid(color="0.92")
            axes.tick_params(labelbottom=at + COLUMNS >= len(found))
        figure.supxlabel("requests in time of the client that floods", fontsize=9)
        figure.supylabel("requests in time of the worst well-behaved client", fontsize=9)
        save(figure, [FIGURE])


def _line(curve: Mapping[float, Mapping[str, float]]) -> tuple[Sequence[float], Sequence[float]]:
    points = curve.values()
    return [one["kept_flood"] for one in points], [one["kept_worst"] for one in points]


def _loads(axes: Axes, curve: Mapping[float, Mapping[str, float]]) -> None:
    """Write its load next to each point, so that no two labels overlap."""
    last = (-9.0, -9.0)
    for load, x, y in zip(curve, *_line(curve), strict=True):
        if max(abs(x - last[0]), abs(y - last[1])) < 0.09:
            continue
        axes.annotate(f"{load:g}", (x, y), (4, 4), textcoords="offset points", fontsize=7)
        last = (x, y)


def main(folder: str, sweep: str = str(SWEEP)) -> None:
    """Read the store, write the table, and draw the figure."""
    found = curves(Path(folder), Path(sweep))
    write(found)
    draw(found)
