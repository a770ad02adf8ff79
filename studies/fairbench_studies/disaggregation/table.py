"""Fairness with separate prefill and decode workers: a table and a picture.

    python studies disaggregation WORKLOAD,... SEED ...   # simulates; needs FAIRBENCH_DATA
    python studies disaggregation                         # writes table and picture

The script appends a row to results/disaggregation.csv as soon as a run has ended. After all runs,
the script writes results/tables/disaggregation.csv and plots/disaggregation.svg. The table shows a
configuration only if it has runs with the same seeds as colocated replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.report.palette import BLUE, PURPLE, VERMILION
from fairbench.results.significance import t_interval
from fairbench.sim.run import simulate
from fairbench_papers.style import caption, panels, paper_style, save
from fairbench_studies.kit.rows import ROOT, Row, extend_rows, read_rows
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.table_text import differs, plus_minus

RUNS = ROOT / "results/disaggregation.csv"
FIGURE = ROOT / "plots/disaggregation.svg"
KEY = ("workload", "scheduler", "form", "seed")
WORKLOADS = ("sessions", "judge", "tot", "long-qa")
SCHEDULERS = ("vtc", "d2lpm", "fair-finish")
COLOCATED, VLLM = "colocated", "vLLM"
APART = {"prefill": 2, "decode": 2}
# ``FORMS`` maps each cluster form, with colocated or separate prefill and decode workers, to its
# flags and settings.
FORMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    COLOCATED: ({"dp": 4}, {}),
    "SGLang": (APART, {}),
    "at admission": (APART, {"disaggregation.reserve": "admission"}),
    VLLM: ({**APART, "engine": "vllm"}, {}),
}
MARKS = {
    COLOCATED: ("0.45", "o"),
    "SGLang": (VERMILION.colour, "s"),
    "at admission": (BLUE.colour, "D"),
    VLLM: (PURPLE.colour, "^"),
}
P50, SERVICE = "victim_p50_s", "service_rate_tok_s"
SHARES = ("min_entitlement_ratio", "min_share_60s")
WIDTH_IN, HEIGHT_IN = 9.0, 2.6
PROVENANCE = (
    "Simulated on an A100; four replicas or two prefill and two decode workers; "
    "means of five seeds with 95% intervals"
)


def run(workload: str, scheduler: str, form: str, seed: int) -> dict[str, Any]:
    """Simulate scenario s1 with the default duration, and return the run's table row."""
    return measured(workload, scheduler, form, seed, *FORMS[form])


def measured(
    workload: str,
    scheduler: str,
    form: str,
    seed: int,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Simulate scenario s1 on the cluster of ``flags`` and ``settings``; return a table row."""
    own = {"workload": workload, "scenario": "s1", "scheduler": scheduler, "seed": seed}
    summary = simulate(resolve({**own, **flags}, settings)).summary
    return {
        **dict(zip(KEY, (workload, scheduler, form, seed), strict=True)),
        **{name: summary[name] for name in (P50, SERVICE, *SHARES)},
        "at_least": " ".join(one for one in summary["censored"] if one == P50),
    }


Configuration = tuple[str, str, str]
Found = Mapping[Configuration, Sequence[Row]]
"""The runs in the order of their seeds, by workload, scheduler and kind of cluster."""


def complete(rows: Sequence[Row]) -> Found:
    """Return the configurations with runs of the same seeds as their colocated counterparts.

    Pairs of a workload and a scheduler that ran only on colocated replicas are left out.
    """
    runs: dict[Configuration, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        runs.setdefault((row["workload"], row["scheduler"], row["form"]), []).append(row)
    found = {
        key: runs[key]
        for key in product(WORKLOADS, SCHEDULERS, FORMS)
        if key in runs and _seeds(runs[key]) == _seeds(runs.get((*key[:2], COLOCATED), []))
    }
    apart = {key[:2] for key in found if key[2] != COLOCATED}
    return {key: found[key] for key in found if key[:2] in apart}


def _seeds(rows: Sequence[Row]) -> list[str]:
    return [row["seed"] for row in rows]


def table(found: Found) -> Iterator[dict[str, str]]:
    """Yield a table row with means over seeds for each configuration.

    Throughput is relative to colocated replicas. The table has no fair shares for vLLM, because the
    simulated vLLM engine counts a request as served from its prefill on.
    """
    for (workload, scheduler, form), rows in found.items():
        base = found[workload, scheduler, COLOCATED]
        pairs = [*zip(rows, base, strict=True)]
        rates = [100 * (float(one[SERVICE]) / float(was[SERVICE]) - 1) for one, was in pairs]
        shares = ["-" if form == VLLM else _cell(pairs, name, 100) for name in SHARES]
        yield {
            "workload": workload,
            "scheduler": scheduler,
            "cluster": form,
            "P50, s": ("> " if any(row["at_least"] for row in rows) else "") + _cell(pairs, P50, 1),
            "throughput, %": "-" if form == COLOCATED else _bold(plus_minus(rates, 1), rates),
            "minimum fair share, %": shares[0],
            "in the worst minute, %": shares[1],
        }


def _cell(pairs: Sequence[tuple[Row, Row]], name: str, unit: float) -> str:
    """Format a mean with its interval, in bold if it differs significantly from colocated runs."""
    known = [(float(one[name]), float(was[name])) for one, was in pairs if one[name] and was[name]]
    if not known:
        return "-"
    values = [unit * one for one, _ in known]
    digits = 0 if max(values) >= (100 if name == P50 else 20) else 1
    return _bold(plus_minus(values, digits, ""), [one - was for one, was in known])


def _bold(text: str, changes: Sequence[float]) -> str:
    return f"**{text}**" if differs(changes) else text


def draw(found: Found) -> None:
    """Draw the latencies with their confidence intervals, one panel per workload."""
    shown: dict[str, list[str]] = {}
    for workload, scheduler, form in found:
        if form == COLOCATED:
            shown.setdefault(workload, []).append(scheduler)
    with paper_style():
        figure, (row,) = panels(1, len(shown), WIDTH_IN, HEIGHT_IN)
        for axes, (workload, schedulers) in zip(row, shown.items(), strict=True):
            for form in FORMS:
                runs = [found.get((workload, scheduler, form)) for scheduler in schedulers]
                _draw_form(axes, form, runs)
            axes.set_xlim(left=0)
            axes.set_title(workload, fontsize=9)
            axes.set_yticks(range(len(schedulers)), schedulers)
            axes.set_ylim(len(schedulers) - 0.5, -0.5)
        # Some workloads did not run on all forms of clusters, so the legend lists the forms of the
        # panel with the most forms.
        fullest = max(row, key=lambda axes: len(axes.get_legend_handles_labels()[1]))
        caption(figure, "P50 latency of well-behaved clients, s", PROVENANCE, fullest)
        save(figure, [FIGURE])


def _draw_form(axes: Any, form: str, runs: Sequence[Sequence[Row] | None]) -> None:
    (colour, marker), offset = MARKS[form], 0.18 * ([*FORMS].index(form) - 1)
    found = [
        (at + offset, t_interval([float(row[P50]) for row in rows]))
        for at, rows in enumerate(runs)
        if rows
    ]
    if found:
        heights, means = zip(*found, strict=True)
        halves = [0.0 if one.low is None else one.mean - one.low for one in means]
        axes.errorbar(
            [one.mean for one in means], heights, xerr=halves, fmt=marker, color=colour,
            label=form, capsize=2,
        )  # fmt: skip


def main(workloads: str = "", *seeds: str) -> None:
    """Simulate the missing runs, write the table of fairness, and draw the picture."""
    names = workloads.split(",") if workloads else []
    points = product(names, SCHEDULERS, FORMS, map(int, seeds))
    extend_rows(RUNS, KEY, points, run)
    found = complete(read_rows(RUNS))
    write("disaggregation", [*table(found)])
    draw(found)
