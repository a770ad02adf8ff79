"""Claims 52 and 53: response times on the Arena trace, with and without rate limits."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from fairbench.metrics.records import Floats
from fairbench_studies.kit.parts import Part, in_every, mean_within, rising
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.artifact import WEIGHTS, even_points, response_times
from fairbench_studies.vtc.curves import POINTS, busiest, output_rate
from fairbench_studies.vtc.experiments import ARENA, RPM_LIMITS
from fairbench_studies.vtc.measures import by_seed
from fairbench_studies.vtc.store import Results, Seeds

DRASTIC_S = 30.0  # the paper gives no number for a "drastic increase" of the time to first token
MEDIUM = 2  # the first two of the four clients that figures 11 and 12 draw
PAPER_OUTPUT = {"rpm 5": 224, "rpm 20": 450, "vtc": 500}


def judge_response_times(seeds: Seeds) -> list[Part]:
    """Judge whose time to first token increases drastically under FCFS, and under VTC.

    A client is over its share if its requests ask for more than an equal share of all service.
    """
    fcfs, vtc = ([_drawn(one, peaks_s(one.traces[f"{ARENA} {run}"])) for one in seeds]
                 for run in ("fcfs", "vtc"))  # fmt: skip
    late = [_late(one.traces[f"{ARENA} vtc"]) for one in seeds]
    medium = [[float(peaks[:MEDIUM].max()) for peaks in of] for of in (vtc, fcfs)]
    names = ", ".join(f"client {client} with {share:.0%}" for client, share in late[0].items())
    return [
        in_every(
            f"FCFS: all four clients reach {DRASTIC_S:g} s",
            [bool(peaks.min() >= DRASTIC_S) for peaks in fcfs],
            _seconds(fcfs[0]),
        ),
        in_every(
            f"VTC: only clients over their share reach {DRASTIC_S:g} s",
            [bool(of) and min(of.values()) > 1 / _clients(one) for of, one in
             zip(late, seeds, strict=True)],
            f"{names or 'no client'} of the requested service",
        ),
        rising(
            "the two clients with a medium number of requests wait over 5x as long under FCFS",
            medium,
            "at most {0:.1f} s under VTC, {1:.1f} s under FCFS",
            5,
        ),
    ]  # fmt: skip


def _drawn(one: Results, values: Floats) -> Floats:
    """Return the values of the four clients that the figures draw."""
    return values[busiest(one.traces[f"{ARENA} vtc"])]


def _clients(one: Results) -> int:
    return len(one.traces[f"{ARENA} vtc"].clients)


def _late(trace: Trace) -> dict[int, float]:
    """Return the clients with a drastic increase, and their fraction of the requested service."""
    tokens = trace.service_tokens(WEIGHTS)
    return {
        client: float(tokens[trace.client == client].sum() / tokens.sum())
        for client, peak_s in zip(trace.clients, peaks_s(trace), strict=True)
        if peak_s >= DRASTIC_S
    }


def _seconds(peaks: Floats) -> str:
    return ", ".join(f"{peak_s:.0f}" for peak_s in peaks) + " s"


def judge_limited_times(seeds: Seeds) -> list[Part]:
    """Judge response times under rate limits, from evenly short to those of FCFS."""
    limited = [[one.traces[f"{ARENA} rpm {limit}"] for one in seeds] for limit in RPM_LIMITS]
    lowest = [_drawn(one, _means_s(trace)) for one, trace in zip(seeds, limited[0], strict=True)]
    spread = [float(means.max() / means.min()) for means in lowest]
    every = [[float(np.nanmean(trace.first_token_latency_s)) for trace in of] for of in limited]
    apart = [[_apart_s(one, trace) for one, trace in zip(seeds, of, strict=True)] for of in limited]
    means, distances = (", ".join(f"{fmean(of):.1f}" for of in one) for one in (every, apart))
    rates = {run: by_seed(seeds, f"{ARENA} {run}", output_rate) for run in PAPER_OUTPUT}
    return [
        mean_within(
            "5 requests a minute: the four clients' mean times are alike (within 2x)",
            spread, 1, 2, "{:.2f}x",
        ),
        rising("the mean time of all served requests grows with the limit", every, f"{means} s"),
        rising(
            "the curves come nearer to FCFS's with each higher limit",
            apart[::-1],
            f"{distances} s apart",
        ),
        *(
            mean_within(
                f"{run.upper()}: {paper} output tok/s (within 10%)",
                rates[run], 0.9 * paper, 1.1 * paper, "{:.0f}",
            )
            for run, paper in PAPER_OUTPUT.items()
        ),
    ]  # fmt: skip


def _means_s(trace: Trace) -> Floats:
    """Return each client's mean time to first token; NaN without a served request."""
    owner, taken_s = trace.client[trace.finished], trace.first_token_latency_s[trace.finished]
    return np.array(
        [taken_s[owner == one].mean() if one in owner else np.nan for one in trace.clients]
    )


def _apart_s(one: Results, trace: Trace) -> float:
    """Return the mean difference between the drawn curves of a run and of FCFS's, in seconds."""
    fcfs = one.traces[f"{ARENA} fcfs"]
    at = even_points(float(fcfs.req_time_s.max()), POINTS)
    mine, other = (_drawn(one, response_times(run, at)) for run in (trace, fcfs))
    return float(np.nanmean(np.abs(mine - other)))


def peaks_s(trace: Trace) -> Floats:
    """Return each client's longest time to first token in any minute; 0 without a first token."""
    curves = response_times(trace, even_points(float(trace.req_time_s.max()), POINTS))
    longest: Floats = np.nan_to_num(curves).max(axis=1)
    return longest
