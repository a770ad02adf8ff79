"""Claims 9 to 11: trees of thought on four A10G over time (figure 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.pairs import LENGTH, Outcome, Pair
from fairbench.figures.claims.places import CALLED, At, by_seed
from fairbench.figures.claims.seeds import Runs, in_seeds, over_seeds, responses
from fairbench.figures.timeline import busy_share, client_names
from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats, Window
from fairbench.metrics.service import View, window_service
from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_tables import read_service
from fairbench.results.store import StoredRun

STALL_S = 300.0  # the paper's Preble leaves the cluster idle from 300 to 600 s

SOONER = {
    name: Pair(f"time of {CALLED[name]}", LENGTH, name, "d2lpm") for name in ("vtc", "preble")
}


def judge_makespan(cells: Sequence[SchedulerResults]) -> Finding:
    """How much sooner all programs are done under D2LPM than under VTC and Preble."""
    at: At = {cell.combined["scheduler"]: by_seed(cell) for cell in cells}
    seen = {name: pair.seen(at) for name, pair in SOONER.items()}
    outcomes = [one.outcome for one in seen.values()]
    gains = {name: one.value or float("nan") for name, one in seen.items()}
    done_s = fmean(summary[LENGTH] for summary in at["d2lpm"].values())
    ours = f"{done_s:,.0f} s; " + ", ".join(
        f"{CALLED[name]} takes {seen[name].bound}{gains[name]:.2f}x as long ({seen[name].outcome})"
        for name in SOONER
    )
    if Outcome.UNCONTENDED in outcomes:
        return Finding(ours, Verdict.NOT_TESTABLE)
    return Finding(
        ours,
        verdict(
            shape=all(one is Outcome.HOLDS for one in outcomes),
            quantity=1.4 <= max(gains.values()) <= 2.6,
            opposite=all(one is Outcome.REVERSED for one in outcomes),
        ),
    )


class Stall(NamedTuple):
    """The longest response of clients 1 and 2, and the idlest time: from when, how busy."""

    longest_s: float
    busy: float
    since_s: float


def _stall(runs: Runs) -> Stall:
    run = runs["preble"]
    workers, end_s = run.summary["dp"], run.summary["duration"]
    longest_s = float(np.nanmax(responses(run, end_s)[1:]))
    starts_s = np.arange(0.0, max(end_s - STALL_S, 1.0), STALL_S / 10)
    shares = [float(busy_share(run, workers, np.array([at, at + STALL_S]))[0]) for at in starts_s]
    busy, since_s = min(zip(shares, starts_s, strict=True))
    return Stall(longest_s, busy, float(since_s))


def judge_stall(cells: Sequence[SchedulerResults]) -> Finding:
    """Under Preble most workers idle for minutes while the well-behaved queue."""
    found = over_seeds(cells, _stall, ("preble",))
    longest_s, busy = (fmean(one[field] for one in found) for field in (0, 1))
    shapes = [one.busy <= 0.5 for one in found]
    return Finding(
        f"longest response of clients 1, 2: {longest_s:,.0f} s; in the idlest {STALL_S:g} s, "
        f"from {', '.join(f'{one.since_s:,.0f}' for one in found)} s on, the workers compute "
        f"{busy:.0%} of the time{in_seeds(shapes)}",
        verdict(
            shape=all(shapes),
            quantity=400 <= longest_s <= 800 and 0.20 <= busy <= 0.35,
            opposite=all(one.busy >= 0.95 for one in found),
        ),
    )


class Equal(NamedTuple):
    """Jain's index of actual service while all are active, and whose service rate is highest."""

    actual: Mapping[str, float]
    first: bool


def _equal(runs: Runs) -> Equal:
    found = {name: _while_all_active(runs[name]) for name in ("vtc", "d2lpm")}
    return Equal(
        {name: jain(services[View.ACTUAL]) for name, services in found.items()},
        all(int(np.argmax(services[View.CLIENT])) == 0 for services in found.values()),
    )


def judge_equal_service(cells: Sequence[SchedulerResults]) -> Finding:
    """VTC and D2LPM: equal actual service while all are active; client 0 has more service."""
    found = over_seeds(cells, _equal, ("vtc", "d2lpm"))
    actual = {name: fmean(one.actual[name] for one in found) for name in ("vtc", "d2lpm")}
    shapes = [one.first and min(one.actual.values()) >= 0.9 for one in found]
    first = sum(one.first for one in found)
    return Finding(
        f"Jain's index of actual service while all are active: VTC {actual['vtc']:.3f}, D2LPM "
        f"{actual['d2lpm']:.3f}; client 0 has the highest service rate in {first} of {len(found)} "
        f"seeds{in_seeds(shapes)}",
        verdict(
            shape=all(shapes),
            quantity=min(actual.values()) >= 0.97,
            opposite=all(max(one.actual.values()) < 0.9 for one in found),
        ),
    )


def _while_all_active(run: StoredRun) -> Mapping[View, Floats]:
    """Each client's service in the paper's window, in both views."""
    window = Window(run.summary["paper_window_start_s"], run.summary["paper_window_end_s"])
    log, clients = read_service(run), len(client_names(run))
    return {
        view: window_service(log, view, window, clients, ServiceWeights())
        for view in (View.ACTUAL, View.CLIENT)
    }


CLAIMS = (
    Claim(
        9,
        "trees on four A10G: D2LPM is done before VTC and Preble",
        "up to 2x faster",
        "[DLPM] §7.1",
        "fig9",
        judge_makespan,
        "the time that goes into decoding is shortened by no hit in the cache, so that a lower hit "
        "rate costs less than in the paper",
    ),
    Claim(
        10,
        "Preble herds client 0 on one worker: clients 1 and 2 queue, the cluster idles",
        "up to 600 s of queueing, 300 s at 1/4 of the cluster",
        "[DLPM] §7.1",
        "fig9",
        judge_stall,
        "how long Preble keeps to one worker depends on how client 0's trees arrive",
    ),
    Claim(
        11,
        "VTC and D2LPM share actual service equally; client 0 has the higher service rate",
        "ideal sharing",
        "[DLPM] §7.1",
        "fig9",
        judge_equal_service,
        "both bound the difference in service, by quanta and requests in flight on each worker, "
        "and do not make it nothing",
    ),
)
