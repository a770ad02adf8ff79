"""Fairness with separate prefill and decode workers: a table and a picture of two sweeps.

    fairbench sweep results/tables/disaggregation.toml
    FAIRBENCH_DATA=FOLDER fairbench sweep results/tables/disaggregation-sessions.toml
    python studies disaggregation results/runs/disaggregation results/runs/disaggregation-sessions

The script writes results/tables/disaggregation.csv (latency and throughput, means over seeds),
results/tables/disaggregation-shares.csv and plots/disaggregation.svg. The picture shows the
well-behaved clients' P50 latency under each scheduler, with four colocated replicas and with two
prefill and two decode workers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from fairbench.figures.style import caption, panels, paper_style, save
from fairbench.report.palette import BLUE, PURPLE, VERMILION
from fairbench.results.store import StoredRun, runs_in
from fairbench.schedulers.registry import PAIRS
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.table_store import write

FIGURE = ROOT / "plots/disaggregation.svg"
WORKLOADS = ("tot", "judge", "long-qa", "sessions")
FORMS = {  # maps the form of a cluster to its colour and marker
    "colocated": ("0.45", "o"),
    "SGLang": (VERMILION.colour, "s"),
    "at admission": (BLUE.colour, "D"),
    "vLLM": (PURPLE.colour, "^"),
}
WIDTH_IN, HEIGHT_IN = 9.0, 3.4
PROVENANCE = "Simulated on an A100; four replicas or two prefill and two decode workers"
SHARES = ("colocated", "SGLang", "at admission")
# This workload has a logarithmic axis, because its latencies span a factor of a hundred.
LOGARITHMIC = "long-qa"
CONTENDED = ("tot", "long-qa")  # in these workloads, some client gets less service than it requests
NUMBERS = ("victim_p50_s", "min_share_60s", "service_rate_tok_s")

Means = Mapping[str, float]
Found = Mapping[tuple[str, str, str], Means]
"""The means over seeds by workload, scheduler and form of the cluster."""


def form_of(run: StoredRun) -> str:
    """Return the form of a run's cluster: colocated or disaggregated."""
    if run.summary.get("prefill") is None:
        return "colocated"
    if run.summary.get("engine") == "vllm":
        return "vLLM"
    text = (run.path / "experiment.toml").read_text(encoding="utf-8")
    reserve = tomllib.loads(text)["settings"]["disaggregation"]["reserve"]
    return "SGLang" if reserve == "arrival" else "at admission"


def means(stores: list[Path]) -> Found:
    """Return the means over the seeds of all runs in these folders."""
    found: dict[tuple[str, str, str], list[StoredRun]] = {}
    for store in stores:
        for run in runs_in(store / "runs"):
            key = (run.summary["workload"], run.summary["scheduler"], form_of(run))
            found.setdefault(key, []).append(run)
    return {
        key: {name: _mean([run.summary[name] for run in runs]) for name in NUMBERS}
        for key, runs in found.items()
    }


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else float("nan")


def table(found: Found) -> list[dict[str, str]]:
    """Return a row per workload and scheduler: P50 latency, throughput relative to colocated."""
    rows = []
    for workload in WORKLOADS:
        for scheduler in PAIRS:
            cells = {form: found[workload, scheduler, form] for form in FORMS}
            base = cells["colocated"]["service_rate_tok_s"]
            rates = [cells[form]["service_rate_tok_s"] / base for form in list(FORMS)[1:]]
            rows.append(
                {
                    "workload": workload,
                    "scheduler": scheduler,
                    **{form: _seconds(cells[form]["victim_p50_s"]) for form in FORMS},
                    "throughput": ", ".join(f"{rate:.2f}" for rate in rates),
                }
            )
    return rows


def shares(found: Found) -> list[dict[str, str]]:
    """Return a row per workload and scheduler: the lowest fair share of any client in any minute.

    vLLM's simulated engine counts a request as served from its prefill on, so the share has little
    meaning there.
    """
    return [
        {
            "workload": workload,
            "scheduler": scheduler,
            **{form: f"{found[workload, scheduler, form]['min_share_60s']:.0%}" for form in SHARES},
        }
        for workload in CONTENDED
        for scheduler in PAIRS
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def draw(found: Found) -> None:
    """Draw the latencies, with a panel for each workload."""
    with paper_style():
        figure, (row,) = panels(1, len(WORKLOADS), WIDTH_IN, HEIGHT_IN, sharey=True)
        for axes, workload in zip(row, WORKLOADS, strict=True):
            for form, (colour, marker) in FORMS.items():
                values = [found[workload, name, form]["victim_p50_s"] for name in PAIRS]
                axes.plot(values, range(len(PAIRS)), marker, color=colour, label=form, alpha=0.9)
            if workload == LOGARITHMIC:
                axes.set(xscale="log", xticks=(1, 10, 100), xticklabels=("1", "10", "100"))
            else:
                axes.set_xlim(left=0)
            axes.set_title(workload, fontsize=9)
            axes.set_yticks(range(len(PAIRS)), list(PAIRS))
        row[0].invert_yaxis()
        caption(figure, "P50 latency of well-behaved clients, s", PROVENANCE, row[0])
        save(figure, [FIGURE])


def main(folder: str, sessions: str) -> None:
    """Read the folders of runs, write the tables, and draw the picture."""
    found = means([Path(folder), Path(sessions)])
    write("disaggregation", table(found))
    write("disaggregation-shares", shares(found))
    draw(found)
