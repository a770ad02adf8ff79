"""Claim 16 of the DLPM paper: a mix of workloads over time (figure 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.seeds import Runs, over_seeds, responses
from fairbench_studies.kit.parts import Claim, Part, in_every


class Mix(NamedTuple):
    """Results of figure 12 for one seed, by scheduler.

    ``mean_s`` is the mean response time of all clients, and ``chat_s`` that of the two chat
    clients. ``end_s`` is the end of the run, and ``even`` is Jain's index of computed service.
    """

    mean_s: Mapping[str, float]
    chat_s: Mapping[str, float]
    end_s: Mapping[str, float]
    even: Mapping[str, float]


def _mix(runs: Runs) -> Mix:
    over_time = {name: responses(run, run.summary["duration"]) for name, run in runs.items()}
    return Mix(
        {name: float(np.nanmean(times)) for name, times in over_time.items()},
        {name: float(np.nanmean(times[:2])) for name, times in over_time.items()},
        {name: run.summary["duration"] for name, run in runs.items()},
        {name: run.summary["jain_index_actual"] for name, run in runs.items()},
    )


def judge_mix(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge claims on DLPM's speed, VTC's fairness, and the delay of conversations under LPM."""
    names = ("lpm", "vtc", "dlpm")
    found = over_seeds(cells, _mix, names)

    def means(field: int, digits: int = 0) -> str:
        return ", ".join(
            f"{name.upper()} {fmean(one[field][name] for one in found):,.{digits}f}"
            for name in names
        )

    first = [min(one.mean_s, key=lambda name: one.mean_s[name]) == "dlpm" for one in found]
    done = [min(one.end_s, key=lambda name: one.end_s[name]) == "dlpm" for one in found]
    even = [one.even["vtc"] >= one.even["dlpm"] for one in found]
    hurt = [one.chat_s["lpm"] > one.chat_s["dlpm"] for one in found]
    return [
        in_every("DLPM has the best response times", first, f"{means(0)} s on average"),
        in_every("DLPM is done first", done, f"{means(2)} s"),
        in_every("VTC is more even than DLPM", even, f"Jain's index {means(3, 3)}"),
        in_every("LPM hurts the conversations", hurt, f"{means(1)} s on average"),
    ]


CLAIMS = (
    Claim(
        16,
        "a mix: DLPM has the best response times and is done first, VTC is more even, LPM hurts "
        "the conversations",
        "shown, not stated in numbers",
        "[DLPM] §7.4",
        "fig12",
        judge_mix,
        "LPM has the lowest Jain's index but the highest hit rate; the paper gives no rates, "
        "and the first scheduler to finish depends on the number of queued requests",
    ),
)
