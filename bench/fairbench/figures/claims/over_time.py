"""Claims 8 to 11 and 16: what figures 8, 9 and 12 show over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.figures.claims.claim import Claim, Finding, verdict
from fairbench.figures.timeline import busy_share, client_names, response_times
from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats, Window
from fairbench.metrics.service import View, window_service
from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_tables import read_service
from fairbench.results.store import StoredRun

INTERVALS = 40
STALL_S = 300.0  # the paper's Preble leaves the cluster idle from 300 to 600 s


def _first_runs(cells: Sequence[SchedulerResults]) -> dict[str, StoredRun]:
    return {cell.combined["scheduler"]: cell.runs[0].run for cell in cells}


def _responses(run: StoredRun, end_s: float) -> Floats:
    """Mean response time of each client's requests in each interval of the arrivals."""
    return response_times(run, np.linspace(0.0, end_s, INTERVALS + 1))


def judge_chat(cells: Sequence[SchedulerResults]) -> Finding:
    """LPM starves 0 and 1, VTC delays 2 and 3; D2LPM is low for 0, 1 and the reformed 2."""
    runs = _first_runs(cells)
    end_s = runs["d2lpm"].summary["window_end_s"]
    over_time = {name: _responses(run, end_s) for name, run in runs.items()}
    good = {name: float(np.nanmax(times[:2])) for name, times in over_time.items()}
    flooding = {name: float(np.nanmax(times[2:])) for name, times in over_time.items()}
    reformed, still = (float(np.nanmean(row[-INTERVALS // 4 :])) for row in over_time["d2lpm"][2:])
    protects = good["d2lpm"] < good["lpm"] / 2 and good["vtc"] < good["lpm"] / 2
    return Finding(
        f"longest response of clients 0, 1: LPM {good['lpm']:.0f} s, VTC {good['vtc']:.0f} s, "
        f"D2LPM {good['d2lpm']:.0f} s; of 2, 3: VTC {flooding['vtc']:.0f} s, D2LPM "
        f"{flooding['d2lpm']:.0f} s; last quarter under D2LPM: client 2 {reformed:.0f} s, client "
        f"3 {still:.0f} s",
        verdict(
            shape=protects and flooding["vtc"] > good["vtc"] and reformed < still,
            quantity=50 <= flooding["vtc"] <= 110,
            opposite=good["d2lpm"] > good["lpm"],
        ),
    )


def judge_makespan(cells: Sequence[SchedulerResults]) -> Finding:
    """How much sooner all programs are done under D2LPM than under VTC and Preble."""
    done_s = {name: run.summary["duration"] for name, run in _first_runs(cells).items()}
    gains = {name: done_s[name] / done_s["d2lpm"] for name in ("vtc", "preble")}
    return Finding(
        f"{done_s['d2lpm']:,.0f} s; VTC takes {gains['vtc']:.2f}x, Preble {gains['preble']:.2f}x "
        "as long",
        verdict(
            shape=min(gains.values()) > 1,
            quantity=1.4 <= max(gains.values()) <= 2.6,
            opposite=max(gains.values()) < 1,
        ),
    )


def judge_stall(cells: Sequence[SchedulerResults]) -> Finding:
    """Under Preble most workers idle for minutes while the well-behaved queue."""
    run = _first_runs(cells)["preble"]
    workers, end_s = run.summary["dp"], run.summary["duration"]
    longest_s = float(np.nanmax(_responses(run, end_s)[1:]))
    starts_s = np.arange(0.0, max(end_s - STALL_S, 1.0), STALL_S / 10)
    shares = [float(busy_share(run, workers, np.array([at, at + STALL_S]))[0]) for at in starts_s]
    busy, since_s = min(zip(shares, starts_s, strict=True))
    return Finding(
        f"longest response of clients 1, 2: {longest_s:,.0f} s; in the idlest {STALL_S:g} s, "
        f"from {since_s:,.0f} s on, the workers compute {busy:.0%} of the time",
        verdict(
            shape=busy <= 0.5,
            quantity=400 <= longest_s <= 800 and 0.20 <= busy <= 0.35,
            opposite=busy >= 0.95,
        ),
    )


def judge_equal_service(cells: Sequence[SchedulerResults]) -> Finding:
    """VTC and D2LPM: equal actual service while all are active; client 0 has more service."""
    runs = _first_runs(cells)
    found = {name: _while_all_active(runs[name]) for name in ("vtc", "d2lpm")}
    actual = {name: jain(services[View.ACTUAL]) for name, services in found.items()}
    first = all(int(np.argmax(services[View.CLIENT])) == 0 for services in found.values())
    return Finding(
        f"Jain's index of actual service while all are active: VTC {actual['vtc']:.3f}, D2LPM "
        f"{actual['d2lpm']:.3f}; client 0 has {'the' if first else 'not the'} highest service rate",
        verdict(
            shape=first and min(actual.values()) >= 0.9,
            quantity=min(actual.values()) >= 0.97,
            opposite=max(actual.values()) < 0.9,
        ),
    )


def judge_mix(cells: Sequence[SchedulerResults]) -> Finding:
    """DLPM has the best response and end, VTC the most even service; LPM hurts conversations."""
    runs = _first_runs(cells)
    over_time = {name: _responses(run, run.summary["duration"]) for name, run in runs.items()}
    mean = {name: float(np.nanmean(times)) for name, times in over_time.items()}
    chat = {name: float(np.nanmean(times[:2])) for name, times in over_time.items()}
    end_s = {name: run.summary["duration"] for name, run in runs.items()}
    even = {name: run.summary["jain_index_actual"] for name, run in runs.items()}
    best = [min(of, key=lambda name: of[name]) == "dlpm" for of in (mean, end_s)]
    return Finding(
        "; ".join(
            f"{name}: mean response {mean[name]:.0f} s, of conversations {chat[name]:.0f} s, done "
            f"at {end_s[name]:,.0f} s, Jain's index of actual service {even[name]:.3f}"
            for name in runs
        ),
        verdict(
            shape=all(best) and even["vtc"] >= even["dlpm"] and chat["lpm"] > chat["dlpm"],
            opposite=not any(best) and even["vtc"] < even["dlpm"] and chat["lpm"] < chat["dlpm"],
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
        8,
        "conversations: LPM starves clients 0 and 1, VTC delays 2 and 3; under D2LPM 0, 1 and the "
        "reformed 2 are served soon",
        "VTC delays 2 and 3 by up to 80 s",
        "[DLPM] §6.3",
        "fig8",
        judge_chat,
        "the default rates, made for an A100, overload the two A10G by more and for longer, so "
        "that whoever floods waits longer under every scheduler",
    ),
    Claim(
        9,
        "trees on four A10G: D2LPM is done before VTC and Preble",
        "up to 2x faster",
        "[DLPM] §7.1",
        "fig9",
        judge_makespan,
        "most of the time goes into decoding, which no hit in the cache shortens, so that VTC's "
        "lower hit rate costs less than in the paper",
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
    Claim(
        16,
        "a mix: DLPM has the best response times and is done first, VTC is more even, LPM hurts "
        "the conversations",
        "shown, not stated in numbers",
        "[DLPM] §7.4",
        "fig12",
        judge_mix,
        "LPM shares least but hits the cache most, and so is done a little before DLPM; both "
        "are well before VTC",
    ),
)
