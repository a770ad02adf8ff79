"""Claim 16: a mix of workloads over time (figure 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.figures.claims.claim import Claim, Finding, verdict
from fairbench.figures.claims.seeds import Runs, in_seeds, over_seeds, responses
from fairbench.results.comparison import SchedulerResults


class Mix(NamedTuple):
    """By scheduler: mean response, that of the conversations, the end, and actual service."""

    mean_s: Mapping[str, float]
    chat_s: Mapping[str, float]
    end_s: Mapping[str, float]
    even: Mapping[str, float]

    @property
    def best(self) -> list[bool]:
        """Whether DLPM has the best response times, and is done first."""
        return [min(of, key=lambda name: of[name]) == "dlpm" for of in (self.mean_s, self.end_s)]

    @property
    def shape(self) -> bool:
        """Whether that is so, VTC is more even, and LPM hurts the conversations."""
        return (
            all(self.best)
            and self.even["vtc"] >= self.even["dlpm"]
            and self.chat_s["lpm"] > self.chat_s["dlpm"]
        )

    @property
    def opposite(self) -> bool:
        """Whether none of it is so."""
        return (
            not any(self.best)
            and self.even["vtc"] < self.even["dlpm"]
            and self.chat_s["lpm"] < self.chat_s["dlpm"]
        )


def _mix(runs: Runs) -> Mix:
    over_time = {name: responses(run, run.summary["duration"]) for name, run in runs.items()}
    return Mix(
        {name: float(np.nanmean(times)) for name, times in over_time.items()},
        {name: float(np.nanmean(times[:2])) for name, times in over_time.items()},
        {name: run.summary["duration"] for name, run in runs.items()},
        {name: run.summary["jain_index_actual"] for name, run in runs.items()},
    )


def judge_mix(cells: Sequence[SchedulerResults]) -> Finding:
    """DLPM has the best response and end, VTC the most even service; LPM hurts conversations."""
    names = ("lpm", "vtc", "dlpm")
    found = over_seeds(cells, _mix, names)
    mean = {
        name: [fmean(of[name] for of in facts) for facts in zip(*found, strict=True)]
        for name in names
    }
    shapes = [one.shape for one in found]
    return Finding(
        "; ".join(
            f"{name}: mean response {response_s:.0f} s, of conversations {chat_s:.0f} s, done at "
            f"{end_s:,.0f} s, Jain's index of actual service {even:.3f}"
            for name, (response_s, chat_s, end_s, even) in mean.items()
        )
        + in_seeds(shapes),
        verdict(shape=all(shapes), opposite=all(one.opposite for one in found)),
    )


CLAIMS = (
    Claim(
        16,
        "a mix: DLPM has the best response times and is done first, VTC is more even, LPM hurts "
        "the conversations",
        "shown, not stated in numbers",
        "[DLPM] §7.4",
        "fig12",
        judge_mix,
        "LPM shares least but hits the cache most; the paper gives no rates, and who is done first "
        "depends on how many requests wait for a place in the running batch",
    ),
)
