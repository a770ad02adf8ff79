"""Claim 8 of the DLPM paper: conversations over time (figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.seeds import INTERVALS, Runs, over_seeds, responses
from fairbench_studies.kit.parts import Claim, Part, in_every, number


class Chat(NamedTuple):
    """Response times of the four clients of figure 8, in seconds.

    Under each scheduler, ``good`` is the longest response time of clients 0 and 1, and ``flooding``
    is the longest of clients 2 and 3. ``reformed`` and ``still`` are the mean response times of
    clients 2 and 3 under D2LPM, after client 2 stopped sending too much.
    """

    good: Mapping[str, float]
    flooding: Mapping[str, float]
    reformed: float
    still: float


def _chat(runs: Runs) -> Chat:
    end_s = runs["d2lpm"].summary["window_end_s"]
    over_time = {name: responses(run, end_s) for name, run in runs.items()}
    return Chat(
        {name: float(np.nanmax(times[:2])) for name, times in over_time.items()},
        {name: float(np.nanmax(times[2:])) for name, times in over_time.items()},
        *(float(np.nanmean(row[-INTERVALS // 4 :])) for row in over_time["d2lpm"][2:]),
    )


def judge_chat(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge which clients wait under LPM, VTC and D2LPM.

    According to the paper, clients 0 and 1 wait long under LPM, clients 2 and 3 under VTC, and no
    client under D2LPM.
    """
    found = over_seeds(cells, _chat, ("lpm", "vtc", "d2lpm"))
    good = {name: fmean(one.good[name] for one in found) for name in ("lpm", "vtc", "d2lpm")}
    flooding = {name: fmean(one.flooding[name] for one in found) for name in ("vtc", "d2lpm")}
    starved = [max(one.good["d2lpm"], one.good["vtc"]) < one.good["lpm"] / 2 for one in found]
    delayed = [one.flooding["vtc"] > one.good["vtc"] for one in found]
    heard = [one.reformed < one.still for one in found]
    reformed = fmean(one.reformed for one in found)
    still = fmean(one.still for one in found)
    delay_s = flooding["vtc"]
    return [
        in_every(
            "LPM makes clients 0 and 1 wait twice as long as VTC and D2LPM do",
            starved,
            f"LPM {good['lpm']:.0f} s, VTC {good['vtc']:.0f} s, D2LPM {good['d2lpm']:.0f} s",
        ),
        in_every("VTC delays clients 2 and 3", delayed, f"up to {delay_s:.0f} s"),
        number("the delay is up to 80 s (50 to 110)", delay_s, 50, 110, f"{delay_s:.0f} s"),
        in_every(
            "D2LPM serves the reformed client 2 sooner than client 3",
            heard,
            f"{reformed:.0f} s against {still:.0f} s in the last quarter",
        ),
    ]


CLAIMS = (
    Claim(
        8,
        "conversations: LPM starves clients 0 and 1, VTC delays 2 and 3; D2LPM serves 0, 1 and "
        "the reformed 2 soon",
        "VTC delays 2 and 3 by up to 80 s",
        "[DLPM] §6.3",
        "fig8",
        judge_chat,
        "the paper gives no rates; the waits of the heavy clients depend on how far and how long "
        "their rates are above what two A10G can do",
    ),
)
