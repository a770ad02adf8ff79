"""Claims 9 to 11 of the DLPM paper: trees of thought on four A10G over time (figure 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats, Window
from fairbench.metrics.service import View, window_service
from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_facts import read_service
from fairbench.results.store import StoredRun
from fairbench_papers.timeline import busy_share, client_names
from fairbench_studies.dlpm.claims.pairs import LENGTH, Pair
from fairbench_studies.dlpm.claims.places import CALLED, PREBLES, At, by_seed
from fairbench_studies.dlpm.claims.seeds import Runs, over_seeds, responses
from fairbench_studies.dlpm.claims.throughput import run_of
from fairbench_studies.kit.parts import Claim, Part, in_every, interval_of, number
from fairbench_studies.kit.seeds import derived

STALL_S = 300.0  # seconds for which most workers idle under Preble in the DLPM paper

SOONER = {
    name: Pair(f"time of {CALLED[name]}", LENGTH, name, "d2lpm") for name in ("vtc", *PREBLES)
}


def judge_makespan(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge how much sooner all programs end under D2LPM than under VTC and Preble."""
    at: At = {cell.combined["scheduler"]: by_seed(cell) for cell in cells}
    seen = {name: SOONER[name].seen(at) for name in run_of(SOONER, cells)}
    gains = {name: one.value or nan for name, one in seen.items()}
    done_s = fmean(summary[LENGTH] for summary in at["d2lpm"].values())
    largest = max(gains.values())
    return [
        *(
            Part(
                f"D2LPM is done before {CALLED[name]}",
                one.outcome,
                f"{CALLED[name]} takes {one.bound}{gains[name]:.2f}x D2LPM's {done_s:,.0f} s",
                interval=interval_of(one),
            )
            for name, one in seen.items()
        ),
        number("up to 2x faster (1.4 to 2.6)", largest, 1.4, 2.6, f"up to {largest:.2f}x"),
    ]


def judge_responses(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether response times are lower under D2LPM than under other schedulers (§7.1)."""
    others = run_of(("vtc", "lpm", *PREBLES), cells)
    found = over_seeds(cells, partial(_responses, others=others), ("d2lpm", *others))
    mean = {name: fmean(one[name].mean_s for one in found) for name in ("d2lpm", *others)}
    most = {name: fmean(one[name].most_s for one in found) for name in ("d2lpm", *others)}
    parts = [
        in_every(
            "lower on average than VTC's",
            [one["d2lpm"].mean_s < one["vtc"].mean_s for one in found],
            f"{mean['d2lpm']:,.0f} s, VTC {mean['vtc']:,.0f} s",
        )
    ]
    for name in others[1:]:
        below = [one["d2lpm"].most_s < one[name].most_s for one in found]
        ours = f"at most {most['d2lpm']:,.0f} s, {CALLED[name]} {most[name]:,.0f} s"
        parts.append(
            in_every(f"clients 1 and 2 never wait as long as under {CALLED[name]}", below, ours)
        )
    return parts


class Responses(NamedTuple):
    """A scheduler's mean response time (s), and the longest response time of clients 1 and 2."""

    mean_s: float
    most_s: float


def _responses(runs: Runs, others: Sequence[str]) -> dict[str, Responses]:
    found = {}
    for name in ("d2lpm", *others):
        times = responses(runs[name], runs[name].summary["duration"])
        found[name] = Responses(float(np.nanmean(times)), float(np.nanmax(times[1:])))
    return found


class Stall(NamedTuple):
    """The longest response time of clients 1 and 2 under Preble, and the least busy period.

    ``busy`` is the busy fraction in the least busy ``STALL_S`` seconds, which begin at ``since_s``.
    """

    longest_s: float
    busy: float
    since_s: float


def _stall(runs: Runs, preble: str) -> Stall:
    run = runs[preble]
    workers, end_s = run.summary["dp"], run.summary["duration"]
    longest_s = float(np.nanmax(responses(run, end_s)[1:]))
    busy, since_s = derived(run, "idlest", lambda: _idlest(run, workers, end_s))
    return Stall(longest_s, float(busy), float(since_s))


def _idlest(run: StoredRun, workers: int, end_s: float) -> tuple[float, float]:
    """Return the busy fraction and start (s) of the least busy period of ``STALL_S`` seconds."""
    starts_s = np.arange(0.0, max(end_s - STALL_S, 1.0), STALL_S / 10)
    shares = [float(busy_share(run, workers, np.array([at, at + STALL_S]))[0]) for at in starts_s]
    return min(zip(shares, map(float, starts_s), strict=True))


def judge_stall(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether most workers idle under Preble while well-behaved clients wait."""
    return [part for preble in run_of(PREBLES, cells) for part in _stalls(preble, cells)]


def _stalls(preble: str, cells: Sequence[SchedulerResults]) -> list[Part]:
    found = over_seeds(cells, partial(_stall, preble=preble), (preble,))
    longest_s, busy = (fmean(one[field] for one in found) for field in (0, 1))
    called, idlest = CALLED[preble], f"{busy:.0%} busy in the idlest {STALL_S:g} s"
    return [
        in_every(
            f"{called}: the cluster is half idle for 300 s",
            [one.busy <= 0.5 for one in found],
            idlest,
        ),
        number(
            f"{called}: the cluster is 1/4 busy for 300 s (20 to 35%)", busy, 0.20, 0.35, idlest
        ),
        number(
            f"{called}: clients 1, 2 wait up to 600 s (400 to 800)",
            longest_s,
            400,
            800,
            f"{longest_s:,.0f} s",
        ),
    ]


class Equal(NamedTuple):
    """Results of one seed for the time in which all clients are active.

    ``actual`` maps each scheduler to Jain's index of the clients' computed service. ``first`` says
    whether client 0 has the highest service rate under VTC and D2LPM.
    """

    actual: Mapping[str, float]
    first: bool


FAIR = ("vtc", "d2lpm")


def _equal(runs: Runs, unfair: Sequence[str]) -> Equal:
    found = {name: while_all_active(runs[name]) for name in (*FAIR, *unfair)}
    return Equal(
        {name: jain(computed) for name, (computed, _) in found.items()},
        all(int(np.argmax(found[name][1])) == 0 for name in FAIR),
    )


def judge_equal_service(cells: Sequence[SchedulerResults]) -> list[Part]:
    """Judge whether VTC and D2LPM give all clients equal computed service.

    According to the paper, client 0 still has the highest service rate, because more of its input
    is cached. RR+LPM and Preble share computed service less equally than VTC and D2LPM.
    """
    unfair = run_of(("lpm", *PREBLES), cells)
    found = over_seeds(cells, partial(_equal, unfair=unfair), (*FAIR, *unfair))
    means = {name: fmean(one.actual[name] for one in found) for name in (*FAIR, *unfair)}
    actual = {name: means[name] for name in FAIR}
    return [
        *(
            number(
                f"{CALLED[name]} shares equally (0.97 or more)", value, 0.97, 1.0, f"{value:.3f}"
            )
            for name, value in actual.items()
        ),
        in_every("client 0 has the highest service rate", [one.first for one in found], "highest"),
        *(
            in_every(
                f"{CALLED[name]} shares less equally than D2LPM",
                [one.actual[name] < one.actual["d2lpm"] for one in found],
                f"{means[name]:.3f}, D2LPM {means['d2lpm']:.3f}",
            )
            for name in unfair
        ),
    ]


def while_all_active(run: StoredRun) -> Floats:
    """Return each client's service while all clients are active, shape (2, clients).

    Row 0 has the service without cached input tokens, and row 1 the service with cached input.
    """
    found: Floats = derived(run, "service while all are active", lambda: _services(run))
    return found


def _services(run: StoredRun) -> Floats:
    window = Window(run.summary["paper_window_start_s"], run.summary["paper_window_end_s"])
    log, clients = read_service(run), len(client_names(run))
    return np.array(
        [
            window_service(log, view, window, clients, ServiceWeights())
            for view in (View.ACTUAL, View.CLIENT)
        ]
    )


CLAIMS = (
    Claim(
        9,
        "trees on four A10G: D2LPM is done before VTC and Preble",
        "up to 2x faster",
        "[DLPM] §7.1",
        "fig9",
        judge_makespan,
        "cache hits do not shorten decoding, so a lower hit rate costs less than in the paper",
    ),
    Claim(
        36,
        "trees on four A10G: D2LPM's response times are lower than VTC's, RR+LPM's and Preble's",
        "shown, not stated in numbers",
        "[DLPM] §7.1",
        "fig9",
        judge_responses,
        "the loads are not given: how long clients wait depends on how far they are above capacity",
    ),
    Claim(
        10,
        "Preble sends client 0 to one worker: clients 1 and 2 queue while other workers idle",
        "up to 600 s of queueing, 300 s at 1/4 of the cluster",
        "[DLPM] §7.1",
        "fig9",
        judge_stall,
        "the time that Preble stays with one worker depends on the arrivals of client 0's trees",
    ),
    Claim(
        11,
        "VTC and D2LPM share computed service equally; client 0 has the higher service rate",
        "ideal sharing",
        "[DLPM] §7.1",
        "fig9",
        judge_equal_service,
        "both bound the difference in service, by quanta and requests in flight on each worker, "
        "and do not make it nothing",
    ),
)
