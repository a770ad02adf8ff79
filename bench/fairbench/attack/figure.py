"""The figure of a search: the victims' loss and the attacker's gain of each trial."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from fairbench.attack.objective import LABELS, Objective, value_of
from fairbench.attack.search import Found, Search
from fairbench.figures.style import caption, panels, paper_style, save
from fairbench.report.palette import SERIES


def draw(search: Search, found: Sequence[Found], paths: Sequence[Path]) -> None:
    """Draw every trial by loss and gain, the ranks of the worst, and the search's course.

    Args:
        search: Search with its stored trials.
        found: Confirmed attacks, the worst first.
        paths: Files to write, one for each format.
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
