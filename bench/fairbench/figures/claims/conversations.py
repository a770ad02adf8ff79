"""Claim 8: conversations over time (figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.figures.claims.claim import Claim, Finding, verdict
from fairbench.figures.claims.seeds import INTERVALS, Runs, in_seeds, over_seeds, responses
from fairbench.results.comparison import SchedulerResults


class Chat(NamedTuple):
    """Longest responses of clients 0, 1 and of 2, 3, by scheduler; and D2LPM's at last, of each."""

    good: Mapping[str, float]
    flooding: Mapping[str, float]
    reformed: float
    still: float

    @property
    def shape(self) -> bool:
        """Whether D2LPM and VTC protect 0 and 1, VTC delays the rest, and the reformed is heard."""
        protects = max(self.good["d2lpm"], self.good["vtc"]) < self.good["lpm"] / 2
        return protects and self.flooding["vtc"] > self.good["vtc"] and self.reformed < self.still


def _chat(runs: Runs) -> Chat:
    end_s = runs["d2lpm"].summary["window_end_s"]
    over_time = {name: responses(run, end_s) for name, run in runs.items()}
    return Chat(
        {name: float(np.nanmax(times[:2])) for name, times in over_time.items()},
        {name: float(np.nanmax(times[2:])) for name, times in over_time.items()},
        *(float(np.nanmean(row[-INTERVALS // 4 :])) for row in over_time["d2lpm"][2:]),
    )


def judge_chat(cells: Sequence[SchedulerResults]) -> Finding:
    """LPM starves 0 and 1, VTC delays 2 and 3; D2LPM is low for 0, 1 and the reformed 2."""
    found = over_seeds(cells, _chat, ("lpm", "vtc", "d2lpm"))
    good = {name: fmean(one.good[name] for one in found) for name in ("lpm", "vtc", "d2lpm")}
    flooding = {name: fmean(one.flooding[name] for one in found) for name in ("vtc", "d2lpm")}
    shapes = [one.shape for one in found]
    return Finding(
        f"longest response of clients 0, 1: LPM {good['lpm']:.0f} s, VTC {good['vtc']:.0f} s, "
        f"D2LPM {good['d2lpm']:.0f} s; of 2, 3: VTC {flooding['vtc']:.0f} s, D2LPM "
        f"{flooding['d2lpm']:.0f} s; last quarter under D2LPM: client 2 "
        f"{fmean(one.reformed for one in found):.0f} s, client 3 "
        f"{fmean(one.still for one in found):.0f} s{in_seeds(shapes)}",
        verdict(
            shape=all(shapes),
            quantity=50 <= flooding["vtc"] <= 110,
            opposite=all(one.good["d2lpm"] > one.good["lpm"] for one in found),
        ),
    )


CLAIMS = (
    Claim(
        8,
        "conversations: LPM starves clients 0 and 1, VTC delays 2 and 3; under D2LPM 0, 1 and the "
        "reformed 2 are served soon",
        "VTC delays 2 and 3 by up to 80 s",
        "[DLPM] §6.3",
        "fig8",
        judge_chat,
        "the paper gives no rates; how long whoever floods waits depends on how far they are above "
        "what two A10G can do, and for how long",
    ),
)
