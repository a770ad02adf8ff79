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

# ``DRASTIC_S`` is assumed for a "drastic increase" of the time to first token, because the paper
# gives no number.
DRASTIC_S = 30.0
MEDIUM = 2  # The first two plotted clients have a medium number of requests.
PAPER_OUTPUT = {"rpm 5": 224, "rpm 20": 450, "vtc": 500}


def judge_response_times(seeds: Seeds) -> list[Part]:
    """Judge for which clients the time to first token rises drastically under FCFS and VTC.

    A client exceeds its share if its requests ask for more than an equal part of all service.
    """
    fcfs, vtc = ([_peaks_s(one, run) for one in seeds] for run in ("fcfs", "vtc"))
    late = by_seed(seeds, f"{ARENA} vtc", f"clients that reach {DRASTIC_S:g} s", _late)
    equal = [1 / clients for clients in by_seed(seeds, f"{ARENA} vtc", "clients", _clients)]
    medium = [[max(peaks[:MEDIUM]) for peaks in of] for of in (vtc, fcfs)]
    names = ", ".join(f"client {client} with {share:.0%}" for client, share in late[0])
    return [
        in_every(
            f"FCFS: all four clients reach {DRASTIC_S:g} s",
            [min(peaks) >= DRASTIC_S for peaks in fcfs],
            ", ".join(f"{peak_s:.0f}" for peak_s in fcfs[0]) + " s",
        ),
        in_every(
            f"VTC: only clients over their share reach {DRASTIC_S:g} s",
            [
                bool(of) and all(share > least for _, share in of)
                for of, least in zip(late, equal, strict=True)
            ],
            f"{names or 'no client'} of the requested service",
        ),
        rising(
            "the two clients with a medium number of requests wait over 5x as long under FCFS",
            medium,
            "at most {0:.1f} s under VTC, {1:.1f} s under FCFS",
            5,
        ),
    ]


def _peaks_s(one: Results, run: str) -> list[float]:
    name = "longest TTFT of the clients drawn"
    found: list[float] = one.measured(
        f"{ARENA} {run}", name, lambda trace: _drawn(one, peaks_s(trace)).tolist()
    )
    return found


def _drawn(one: Results, values: Floats) -> Floats:
    return values[busiest(one.traces[f"{ARENA} vtc"])]


def _clients(trace: Trace) -> int:
    return len(trace.clients)


def _late(trace: Trace) -> list[tuple[int, float]]:
    """Return clients whose mean TTFT reaches ``DRASTIC_S``, with their fractions of all service."""
    tokens = trace.service_tokens(WEIGHTS)
    return [
        (client, float(tokens[trace.client == client].sum() / tokens.sum()))
        for client, peak_s in zip(trace.clients, peaks_s(trace), strict=True)
        if peak_s >= DRASTIC_S
    ]


def judge_limited_times(seeds: Seeds) -> list[Part]:
    """Judge whether response times approach those under FCFS as rate limits rise."""
    lowest, *_ = names = [f"{ARENA} rpm {limit}" for limit in RPM_LIMITS]
    spread = [_spread(one, lowest) for one in seeds]
    every = [by_seed(seeds, name, "mean TTFT", _mean_s) for name in names]
    apart = [[_apart_s(one, name) for one in seeds] for name in names]
    means, distances = (", ".join(f"{fmean(of):.1f}" for of in one) for one in (every, apart))
    rates = {
        run: by_seed(seeds, f"{ARENA} {run}", "output tokens/s", output_rate)
        for run in PAPER_OUTPUT
    }
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


def _mean_s(trace: Trace) -> float:
    return float(np.nanmean(trace.first_token_latency_s))


def _spread(one: Results, run: str) -> float:
    def spread(trace: Trace) -> float:
        means_s = _drawn(one, _means_s(trace))
        return float(means_s.max() / means_s.min())

    return float(one.measured(run, "longest over shortest mean TTFT", spread))


def _means_s(trace: Trace) -> Floats:
    """Return each client's mean TTFT (s), or NaN if none of its requests was served."""
    owner, taken_s = trace.client[trace.finished], trace.first_token_latency_s[trace.finished]
    return np.array(
        [taken_s[owner == one].mean() if one in owner else np.nan for one in trace.clients]
    )


def _apart_s(one: Results, run: str) -> float:
    def apart_s(trace: Trace) -> float:
        fcfs = one.traces[f"{ARENA} fcfs"]
        at = even_points(float(fcfs.req_time_s.max()), POINTS)
        mine, other = (_drawn(one, response_times(of, at)) for of in (trace, fcfs))
        return float(np.nanmean(np.abs(mine - other)))

    return float(one.measured(run, "seconds apart from FCFS", apart_s))


def peaks_s(trace: Trace) -> Floats:
    """Return each client's highest mean TTFT (s) in a window, or 0 without a first token."""
    curves = response_times(trace, even_points(float(trace.req_time_s.max()), POINTS))
    longest: Floats = np.nan_to_num(curves).max(axis=1)
    return longest
