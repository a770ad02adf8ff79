"""The results of an attack search: a table of the worst attacks, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fairbench.report.palette import SERIES
from fairbench.report.run_table import show
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_attacks.flags import LABELS, Objective, value_of
from fairbench_attacks.search import ConfirmedAttack, Search
from fairbench_papers.style import caption, panels, paper_style, save

DIGITS = 2  # decimal places of a ratio in the table of attacks
KEYS = ("kept", "finished", "gain", "hits")
EXPLAINED = (
    "All columns are relative to the run in which the attacker is honest. kept: fraction "
    "of the victims' due service that was served; finished: their finished programs; "
    "gain: useful service of the attacker; hits: cache hit rate of the victims; P95: latency "
    "of the victims (> is a lower bound). 95% intervals over seeds."
)


def attack_text(
    title: str, rows: Sequence[Mapping[str, Any]], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return a table that compares each attack, one per row, with the honest run."""
    table = plain_table("", *KEYS, "P95")
    for row in rows:
        times = f"{row.get('programs', 1.0):.2f}"
        about = row["about"] if times == "1.00" else f"{row['about']}, {times} times the programs"
        p95 = (">" if row["more"] and row["p95"] else "") + show(row["p95"], DIGITS)
        table.add_row(*map(Text, (about, *(show(row[key], DIGITS) for key in KEYS), p95)))
    blocks: list[RenderableType] = [
        Text(title, style="bold"),
        Text(),
        table,
        Text(),
        Text(EXPLAINED, style="dim"),
    ]
    return printed(Group(*blocks), colour=colour, width=width)


def processors_text(hours: float) -> str:
    """Return processor time as text, in hours or, below 0.1 hours, in seconds."""
    return f"{hours:.2f} hours" if hours >= 0.1 else f"{3600 * hours:.0f} s"


def draw(search: Search, found: Sequence[ConfirmedAttack], paths: Sequence[Path]) -> None:
    """Draw a search's trials: the victims' service, the attacker's gain, and the objective.

    The confirmed attacks (``found``) are drawn as numbered diamonds.
    """
    trials = [trial for trial in search.store.trials() if not trial.error]
    objective, spec = Objective(search.plan.objective), search.spec
    with paper_style():
        figure, axes = panels(1, 2, 8.0, 3.4)
        plane, course = axes[0]
        kept = [fmean(one.kept for one in trial.harms) for trial in trials]
        gain = [fmean(one.gain for one in trial.harms) for trial in trials]
        plane.axhline(1, color="0.7", linewidth=0.8)
        plane.axvline(1, color="0.7", linewidth=0.8)
        plane.plot(kept, gain, "o", color=SERIES[0].colour, alpha=0.6, label="a trial")
        plane.plot(
            [one.harm["kept"]["mean"] for one in found],
            [one.harm["gain"]["mean"] for one in found],
            "D", color=SERIES[1].colour, label="the worst, on other seeds",
        )  # fmt: skip
        for rank, one in enumerate(found, 1):
            place = (one.harm["kept"]["mean"], one.harm["gain"]["mean"])
            plane.annotate(str(rank), place, xytext=(4, 3), textcoords="offset points", fontsize=8)
        plane.set_xlabel("victims' service relative to the honest run")
        plane.set_ylabel("attacker's gain in useful service")
        values = [value_of(trial.harms, objective) for trial in trials]
        course.plot([trial.number + 1 for trial in trials], values, "o", color=SERIES[0].colour)
        best = list(accumulate(values, max))
        course.plot(
            [trial.number + 1 for trial in trials],
            best,
            "-",
            color="0.3",
            drawstyle="steps-post",
            label="the best so far",
        )
        course.set_xlabel("trial")
        course.set_ylabel(LABELS[objective])
        course.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
        title = f"Attacks on {spec.scheduler}, {spec.workload.name}, dp {spec.dp}"
        listed = ". ".join(f"{rank}: {one.trial.behaviour}" for rank, one in enumerate(found, 1))
        caption(figure, title, f"Simulated, {spec.gpu}. {listed}.", plane)
        save(figure, paths)
