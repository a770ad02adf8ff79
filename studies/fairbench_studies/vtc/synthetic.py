"""Claims 18 to 24, 27 to 29 and 51: two to four clients with synthetic arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import numpy as np

from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats
from fairbench_studies.kit.parts import Part, in_every, mean_within, number, rising
from fairbench_studies.kit.trace import Trace, ttft_s
from fairbench_studies.vtc.artifact import WARMUP_S, differences, service_rates
from fairbench_studies.vtc.experiments import SHORT
from fairbench_studies.vtc.measures import by_seed, difference_of, listed, mean_ttft_s, rates
from fairbench_studies.vtc.store import Seeds

BOUND = 40_000  # bound on the service gap in weighted tokens, with a KV pool of 10,000 tokens
DIFFERENCE = "largest difference"
VTC, FCFS = "VTC {:.1f} s", "FCFS {:.0f} s"


def _under(
    seeds: Seeds,
    workload: str,
    runs: tuple[str, ...],
    name: str,
    measure: Callable[[Trace], float],
) -> list[list[float]]:
    return [by_seed(seeds, f"{workload} {run}", name, measure) for run in runs]


def judge_overload(seeds: Seeds) -> list[Part]:
    """Judge whether the service difference is constant under VTC and grows under FCFS."""
    vtc, fcfs = _under(seeds, "vtc-overload", ("vtc", "fcfs"), DIFFERENCE, difference_of)
    within, form = [one <= BOUND for one in vtc], "VTC {:,.0f}, FCFS {:,.0f}"
    return [
        in_every("VTC's difference is at most 40,000", within, f"{max(vtc):,.0f}"),
        mean_within("VTC's difference is 9,050 (up to 20,000)", vtc, 0, 20_000, "{:,.0f}"),
        rising("FCFS's difference is more than 10x VTC's", [vtc, fcfs], form, 10),
    ]


def judge_shares(seeds: Seeds) -> list[Part]:
    """Judge Jain's fairness index of the clients' service rates under FCFS and VTC."""

    def index(trace: Trace) -> float:
        return jain(rates(trace, 30, 300).tolist())

    fcfs, vtc = _under(seeds, "vtc-overload", ("fcfs", "vtc"), "Jain's index", index)
    form = "FCFS {:.3f}, VTC {:.4f}"
    return [
        rising("VTC's index is above FCFS's", [fcfs, vtc], form, 0.0, is_ratio=False),
        mean_within("FCFS 0.899 (0.889 to 0.909)", fcfs, 0.889, 0.909, "{:.3f}"),
        mean_within("VTC 0.9996 (0.99 or more)", vtc, 0.99, 1.0, "{:.4f}"),
    ]


def judge_proportional(seeds: Seeds) -> list[Part]:
    """Judge whether two low-demand clients are fully served, and a third gets all other service."""
    name = "vtc-proportional vtc"
    found = _rates(seeds, name, 60, 600)
    waits = np.array(by_seed(seeds, name, "mean TTFT by client", _three_waits))
    sides = [waits[:, :2].max(axis=1), waits[:, 2]]
    ratio = found[:, 1] / found[:, 0]
    return [
        mean_within("clients 0 and 1 get 1 : 2 (1.9 to 2.1)", ratio, 1.9, 2.1, "1 : {:.2f}"),
        rising("client 2 waits over 5x as long as the others", sides, "{1:.0f} s, {0:.1f} s", 5),
        _near("189 : 378 : 778 (each within 5%)", found, np.array([189, 378, 778]), 0.05),
    ]


def _three_waits(trace: Trace) -> list[float]:
    return [mean_ttft_s(trace, client) for client in range(3)]


def _rates(seeds: Seeds, run: str, start_s: float, end_s: float) -> Floats:
    """Return the service per second of each client in a period, shape (seeds, clients)."""
    name = f"service from {start_s:g} to {end_s:g} s"
    return np.array(by_seed(seeds, run, name, lambda trace: rates(trace, start_s, end_s).tolist()))


def judge_on_off(seeds: Seeds) -> list[Part]:
    """Judge whether an on-off client with a backlog gets as much service as a steady client."""
    name, text = "vtc-on-off-overload vtc", "an accumulated difference of 7,541 (up to 3x)"
    found = _rates(seeds, name, 0, 600)
    ratio = float((found[:, 0] / found[:, 1]).mean())
    return [
        number("equal service (within 5%)", ratio, 0.95, 1.05, _shown(found)),
        mean_within(text, by_seed(seeds, name, DIFFERENCE, difference_of), 0, 3 * 7_541, "{:,.0f}"),
    ]


PHASE_S = 60.0  # seconds of each ON phase and each pause in figure 5; the first phase is ON


def judge_pauses(seeds: Seeds) -> list[Part]:
    """Judge whether an on-off client is served while on, and another client in its pauses."""
    done, late, totals = (
        by_seed(seeds, "vtc-on-off-less vtc", name, measure)
        for name, measure in (
            ("requests of client 0 done in their phase", _done_in_phase),
            ("share of client 1 in late pauses", _share_of_second),
            ("total in pauses over total in phases", _total_in_pauses),
        )
    )
    return [
        mean_within(
            "at least half of client 0's requests are done before its pause begins",
            done, 0.5, 1, "{:.0%}",
        ),
        mean_within(
            "client 1 gets all service in the second half of a pause (99% or more)",
            late, 0.99, 1, "{:.1%}",
        ),
        mean_within(
            "the total service rate in the pauses is that of the ON phases (within 5%)",
            totals, 0.95, 1.05, "{:.3f}x",
        ),
    ]  # fmt: skip


def _done_in_phase(trace: Trace) -> float:
    """Return the fraction of client 0's requests that end in the ON phase in which they arrive."""
    mine = trace.client == trace.clients[0]
    at_s = trace.req_time_s[mine]
    off_s = at_s // (2 * PHASE_S) * 2 * PHASE_S + PHASE_S
    return float((at_s + trace.request_latency_s[mine] <= off_s).mean())


def _share_of_second(trace: Trace) -> float:
    found = service_rates(trace, _phases(trace, 1.75 * PHASE_S), PHASE_S / 2)
    return float(found[1].sum() / found.sum())


def _total_in_pauses(trace: Trace) -> float:
    on, off = (service_rates(trace, _phases(trace, first_s * PHASE_S)) for first_s in (0.5, 1.5))
    return float(off.sum(axis=0).mean() / on.sum(axis=0).mean())


def _phases(trace: Trace, first_s: float) -> Floats:
    """Return the times from ``first_s`` to the last arrival, one ON phase and one pause apart."""
    return np.arange(first_s, float(trace.req_time_s.max()), 2 * PHASE_S)


def judge_poisson(seeds: Seeds) -> list[Part]:
    """Judge VTC's service difference against its bound, the paper's value and FCFS's difference.

    Like the paper, the first verdict leaves out the first 30 s, because one client has too few
    queued requests. The second verdict covers the whole run, including the first 30 s.
    """
    parts = []
    for suffix, figure, measured in (("", "Fig. 7", 5_235), ("-2", "Fig. 8", 1_281)):
        name = f"vtc-poisson-short-long{suffix}"
        gaps = [one.gaps[f"{name} vtc"] for one in seeds]
        bounded = f"{figure}: at most 40,000 under VTC while both wait"
        parts.append(in_every(bounded, [gap <= BOUND for gap in gaps], f"{max(gaps):,.0f}"))
        found = {
            said: _differences(seeds, name, figure, measured, start_s)
            for said, start_s in (("from 30 s on", WARMUP_S), ("from the beginning", 0.0))
        }
        for both in zip(*found.values(), strict=True):
            under = {said: part.outcome for said, part in zip(found, both, strict=True)}
            beginning = f"{both[0].ours} from 30 s on; from the beginning {both[1].ours}"
            parts.append(replace(both[0], ours=beginning, under=under))
    return parts


def _differences(
    seeds: Seeds, name: str, figure: str, measured: int, start_s: float
) -> tuple[Part, Part]:
    """Compare VTC's service difference with the paper's value and with FCFS's difference."""

    def difference(trace: Trace) -> float:
        return difference_of(trace, start_s)

    sides = _under(seeds, name, ("vtc", "fcfs"), f"{DIFFERENCE} from {start_s:g} s", difference)
    text = f"{figure}: VTC's difference is {measured:,} (up to 3x)"
    return (
        rising(f"{figure}: FCFS's difference is more than 3x VTC's", sides,
               "VTC {:,.0f}, FCFS {:,.0f}", 3),
        mean_within(text, sides[0], 0, 3 * measured, "{:,.0f}"),
    )  # fmt: skip


def judge_isolation(seeds: Seeds) -> list[Part]:
    """Judge whether a client below its share keeps its service when another client's load rises."""

    def tail_s(trace: Trace) -> float:
        return ttft_s(trace, [trace.clients[0]], 99)

    vtc, fcfs = _under(seeds, "vtc-increasing", ("vtc", "fcfs"), "P99 TTFT of client 0", tail_s)
    form = f"{VTC}, {FCFS}"
    return [
        rising("client 0's P99 under FCFS is more than 10x VTC's", [vtc, fcfs], form, 10),
        mean_within("VTC 0.7 s (up to 3x)", vtc, 0, 3 * 0.7, VTC),
        mean_within("FCFS 48 s (24 to 96 s)", fcfs, 24, 96, FCFS),
    ]


def judge_shift(seeds: Seeds) -> list[Part]:
    """Judge whether LCF (least counter first) repays a client for time without requests."""

    def share(trace: Trace) -> float:
        found = rates(trace, 300, 600)
        return float(found[0] / found.sum())

    shares = _under(seeds, "vtc-shift", ("vtc", "lcf"), "client 0's share from 300 to 600 s", share)
    lcf, vtc = _under(
        seeds, "vtc-shift", ("lcf", "vtc"), "mean TTFT of client 0", lambda one: mean_ttft_s(one, 0)
    )
    text = "client 0's share of the second phase is over 5 points higher under LCF"
    return [
        rising(text, shares, "VTC {:.0%}, LCF {:.0%}", 0.05, is_ratio=False),
        rising("client 0 waits less under LCF", [lcf, vtc], f"LCF {{:.1f}} s, {VTC}"),
        mean_within("LCF 4.1 s (up to 3x)", lcf, 0, 3 * 4.1, "LCF {:.1f} s"),
        mean_within("VTC 16.3 s (a third to 3x)", vtc, 16.3 / 3, 3 * 16.3, VTC),
    ]


PREDICTED = {"VTC": 104.0, "off by 50%": 12.5, "oracle": 0.5}


def judge_predictions(seeds: Seeds) -> list[Part]:
    """Judge whether better predictions of output lengths give smaller service differences."""
    runs = ("vtc", "off by 50%", "oracle")
    found = _under(seeds, SHORT, runs, "mean difference", lambda one: differences(one).mean)
    vtc, off, oracle = found
    return [
        rising("lengths off by 50% give less than none", [off, vtc], "{:.1f}, none {:.1f}"),
        rising("known lengths give less than these", [oracle, off], "{:.1f}, off by 50% {:.1f}"),
        *(
            mean_within(f"{name} {paper:g} (up to 3x)", means, 0, 3 * paper, "{:.1f}")
            for means, (name, paper) in zip(found, PREDICTED.items(), strict=True)
        ),
    ]


def judge_weights(seeds: Seeds) -> list[Part]:
    """Judge whether service is proportional to the clients' weights."""
    found = _rates(seeds, "vtc-weighted vtc", 60, 360)
    due = found.sum(axis=1, keepdims=True) * np.arange(1, 5) / 10
    return [
        _near("1 : 2 : 3 : 4 (each within 10%)", found, due, 0.1),
        _near("135 : 271 : 406 : 541 (each share within 3%)", found, due, 0.03),
    ]


def judge_pool(seeds: Seeds) -> list[Part]:
    """Judge whether a larger KV pool gives a larger service difference."""
    sides = _under(seeds, "vtc-memory-pool", ("35,000", "65,000"), DIFFERENCE, difference_of)
    by_length = _under(seeds, "vtc-length", ("256", "512", "768"), DIFFERENCE, difference_of)
    lengths = [*map(fmean, by_length)]
    small, large = map(fmean, sides)
    ours = f"{small:,.0f} to {large:,.0f}"
    more = f"{ours} (256, 512, 768 tokens at 35,000: {listed(lengths)})"
    return [
        rising("the difference grows with the pool", sides, more),
        number("33,092 to 64,916 (1.3x to 3x)", large, 1.3 * small, 3 * small, ours),
    ]


def _shown(found: Floats) -> str:
    return " : ".join(f"{rate:.0f}" for rate in found.mean(axis=0))


def _near(text: str, found: Floats, due: Floats, most: float) -> Part:
    apart = np.abs(found / due - 1).max(axis=1)
    return mean_within(text, apart, 0, most, f"{_shown(found)}, at most {{:.2%}} off")
