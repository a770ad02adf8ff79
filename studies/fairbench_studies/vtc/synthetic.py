"""Claims 18 to 24 and 27 to 29: two to four clients on synthetic arrivals."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats
from fairbench_studies.kit.parts import Part, in_every, number, rising
from fairbench_studies.kit.trace import Trace, ttft_s
from fairbench_studies.vtc.artifact import differences
from fairbench_studies.vtc.experiments import SHORT
from fairbench_studies.vtc.measures import by_seed, difference_of, listed, mean_ttft_s, rates
from fairbench_studies.vtc.store import Seeds

BOUND = 40_000  # on the service difference of two waiting clients, in a pool of 10,000 tokens


def judge_overload(seeds: Seeds) -> list[Part]:
    """Judge that the difference is flat under VTC and grows under FCFS."""
    vtc, fcfs = (by_seed(seeds, f"vtc-overload {name}", difference_of) for name in ("vtc", "fcfs"))
    shown = f"VTC {fmean(vtc):,.0f}"
    return [
        in_every("VTC's difference is at most 40,000", [one <= BOUND for one in vtc], shown),
        number("VTC's difference is 9,050 (up to 20,000)", fmean(vtc), 0, 20_000, shown),
        rising(
            "FCFS's difference is more than 10x VTC's",
            [vtc, fcfs],
            f"FCFS {fmean(fcfs):,.0f}, {shown}",
            flip=10,
        ),
    ]


def judge_shares(seeds: Seeds) -> list[Part]:
    """Judge Jain's index of the service rates."""

    def index(trace: Trace) -> float:
        return jain(rates(trace, 30, 300).tolist())

    fcfs, vtc = (by_seed(seeds, f"vtc-overload {name}", index) for name in ("fcfs", "vtc"))
    low, high = f"FCFS {fmean(fcfs):.3f}", f"VTC {fmean(vtc):.4f}"
    return [
        rising(
            "VTC's index is above FCFS's", [fcfs, vtc], f"{low}, {high}", flip=0.0, is_ratio=False
        ),
        number("FCFS 0.899 (0.889 to 0.909)", fmean(fcfs), 0.889, 0.909, low),
        number("VTC 0.9996 (0.99 or more)", fmean(vtc), 0.99, 1.0, high),
    ]


def judge_proportional(seeds: Seeds) -> list[Part]:
    """Judge that clients below their share get their demand, and the third the rest."""
    traces = [one.traces["vtc-proportional vtc"] for one in seeds]
    found = np.array([rates(trace, 60, 600) for trace in traces])
    waits = np.array([[mean_ttft_s(trace, client) for client in range(3)] for trace in traces])
    ratio = float((found[:, 1] / found[:, 0]).mean())
    seconds = ", ".join(f"{wait:.1f} s" for wait in waits.mean(axis=0))
    return [
        number("clients 0 and 1 get 1 : 2 (1.9 to 2.1)", ratio, 1.9, 2.1, f"1 : {ratio:.2f}"),
        rising(
            "client 2 waits more than 5x as long as each of them",
            [waits[:, :2].max(axis=1), waits[:, 2]],
            seconds,
            flip=5,
        ),
        _near("189 : 378 : 778 (each within 5%)", found, np.array([189, 378, 778]), 0.05),
    ]


def judge_on_off(seeds: Seeds) -> list[Part]:
    """Judge that a backlogged on-off client gets as much as a client that is always on."""
    name = "vtc-on-off-overload vtc"
    found = np.array([rates(one.traces[name], 0, 600) for one in seeds])
    ratio, gap = float((found[:, 0] / found[:, 1]).mean()), by_seed(seeds, name, difference_of)
    return [
        number("equal service (within 5%)", ratio, 0.95, 1.05, _shown(found)),
        _up_to("an accumulated difference of 7,541 (up to 3x)", gap, 3 * 7_541),
    ]


def judge_poisson(seeds: Seeds) -> list[Part]:
    """Judge the bound while both clients wait, and the differences from the beginning."""
    parts = []
    for suffix, figure, measured in (("", "Fig. 7", 5_235), ("-2", "Fig. 8", 1_281)):
        name = f"vtc-poisson-short-long{suffix}"
        gaps = [one.gaps[f"{name} vtc"] for one in seeds]
        vtc, fcfs = (by_seed(seeds, f"{name} {local}", difference_of) for local in ("vtc", "fcfs"))
        parts += [
            in_every(
                f"{figure}: at most 40,000 under VTC while both wait",
                [gap <= BOUND for gap in gaps],
                f"{max(gaps):,.0f}",
            ),
            rising(
                f"{figure}: FCFS's difference from the beginning is more than 3x VTC's",
                [vtc, fcfs],
                f"FCFS {fmean(fcfs):,.0f}, VTC {fmean(vtc):,.0f}",
                flip=3,
            ),
            _up_to(
                f"{figure}: VTC's difference from the beginning is {measured:,} (up to 3x)",
                vtc,
                3 * measured,
            ),
        ]
    return parts


def judge_isolation(seeds: Seeds) -> list[Part]:
    """Judge that a client below its share is unaffected when the other's load rises."""

    def tail_s(trace: Trace) -> float:
        return ttft_s(trace, [trace.clients[0]], 99)

    vtc, fcfs = (by_seed(seeds, f"vtc-increasing {name}", tail_s) for name in ("vtc", "fcfs"))
    low, high = f"VTC {fmean(vtc):.1f} s", f"FCFS {fmean(fcfs):.0f} s"
    return [
        rising(
            "client 0's P99 under FCFS is more than 10x VTC's",
            [vtc, fcfs],
            f"{high}, {low}",
            flip=10,
        ),
        number("VTC 0.7 s (up to 3x)", fmean(vtc), 0, 3 * 0.7, low),
        number("FCFS 48 s (24 to 96 s)", fmean(fcfs), 24, 96, high),
    ]


def judge_shift(seeds: Seeds) -> list[Part]:
    """Judge that LCF pays back the service that a client missed while it was off."""

    def share(trace: Trace) -> float:
        found = rates(trace, 300, 600)
        return float(found[0] / found.sum())

    names = [f"vtc-shift {local}" for local in ("vtc", "lcf")]
    shares = [by_seed(seeds, name, share) for name in names]
    vtc_s, lcf_s = (by_seed(seeds, name, lambda trace: mean_ttft_s(trace, 0)) for name in names)
    low, high = f"LCF {fmean(lcf_s):.1f} s", f"VTC {fmean(vtc_s):.1f} s"
    return [
        rising(
            "client 0's share of the second phase is over 5 points higher under LCF",
            shares,
            f"VTC {fmean(shares[0]):.0%}, LCF {fmean(shares[1]):.0%}",
            flip=0.05,
            is_ratio=False,
        ),
        rising("client 0 waits less under LCF", [lcf_s, vtc_s], f"{low}, {high}"),
        number("LCF 4.1 s (up to 3x)", fmean(lcf_s), 0, 3 * 4.1, low),
        number("VTC 16.3 s (a third to 3x)", fmean(vtc_s), 16.3 / 3, 3 * 16.3, high),
    ]


PREDICTED = {"vtc": ("VTC", 104.0), "off by 50%": ("off by 50%", 12.5), "oracle": ("oracle", 0.5)}


def judge_predictions(seeds: Seeds) -> list[Part]:
    """Judge that better length predictions give smaller differences."""
    means = {
        run: by_seed(seeds, f"{SHORT} {run}", lambda trace: differences(trace).mean)
        for run in PREDICTED
    }
    vtc, off, oracle = means.values()
    shown = ", ".join(f"{PREDICTED[run][0]} {fmean(found):.1f}" for run, found in means.items())
    return [
        rising("lengths off by 50% give less than no prediction", [off, vtc], shown),
        rising("known lengths give less than lengths off by 50%", [oracle, off], shown),
        *(
            number(
                f"{name} {paper:g} (up to 3x)", fmean(found), 0, 3 * paper, f"{fmean(found):.1f}"
            )
            for found, (name, paper) in zip(means.values(), PREDICTED.values(), strict=True)
        ),
    ]


def judge_weights(seeds: Seeds) -> list[Part]:
    """Judge that service is in proportion to the weights."""
    found = np.array([rates(one.traces["vtc-weighted vtc"], 60, 360) for one in seeds])
    due = found.sum(axis=1, keepdims=True) * np.arange(1, 5) / 10
    return [
        _near("1 : 2 : 3 : 4 (each within 10%)", found, due, 0.1),
        _near("135 : 271 : 406 : 541 (each share within 3%)", found, due, 0.03),
    ]


def judge_pool(seeds: Seeds) -> list[Part]:
    """Judge that a larger pool gives a larger difference."""
    small, large = (
        by_seed(seeds, f"vtc-memory-pool {pool}", difference_of) for pool in ("35,000", "65,000")
    )
    lengths = [
        fmean(by_seed(seeds, f"vtc-length {length}", difference_of)) for length in (256, 512, 768)
    ]
    before, after = fmean(small), fmean(large)
    ours = f"{before:,.0f} to {after:,.0f}"
    return [
        rising(
            "the difference grows with the pool",
            [small, large],
            f"{ours} (256, 512, 768 tokens at 35,000: {listed(lengths)})",
        ),
        number("33,092 to 64,916 (1.3x to 3x)", after, 1.3 * before, 3 * before, ours),
    ]


def _shown(found: Floats) -> str:
    return " : ".join(f"{rate:.0f}" for rate in found.mean(axis=0))


def _near(text: str, found: Floats, due: Floats, most: float) -> Part:
    """Return the part that each rate is near its due; the worst client of each seed counts."""
    apart = float(np.abs(found / due - 1).max(axis=1).mean())
    return number(text, apart, 0, most, f"{_shown(found)}, at most {apart:.2%} off")


def _up_to(text: str, found: list[float], most: float) -> Part:
    return number(text, fmean(found), 0, most, f"{fmean(found):,.0f}")
