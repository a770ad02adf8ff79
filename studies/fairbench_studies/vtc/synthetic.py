"""Claims 18 to 24 and 27 to 29: two to four clients on synthetic arrivals."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.fairness import jain
from fairbench_studies.kit.claim import Finding, verdict
from fairbench_studies.kit.trace import ttft_s
from fairbench_studies.vtc.artifact import differences
from fairbench_studies.vtc.experiments import SHORT
from fairbench_studies.vtc.measures import difference_of, listed, mean_ttft_s, rates
from fairbench_studies.vtc.store import Results


def judge_overload(results: Results) -> Finding:
    """Judge that the difference is flat under VTC and grows under FCFS."""
    traces = {name: results.traces[f"vtc-overload {name}"] for name in ("vtc", "fcfs")}
    vtc, fcfs = (difference_of(trace) for trace in traces.values())
    return Finding(
        f"VTC {vtc:,.0f}, FCFS {fcfs:,.0f}; the bound is 40,000",
        verdict(shape=vtc < fcfs / 10 and vtc <= 40_000, quantity=vtc <= 20_000),
    )


def judge_shares(results: Results) -> Finding:
    """Judge Jain's index of the service rates."""
    found = {
        name: jain(rates(results.traces[f"vtc-overload {name}"], 30, 300).tolist())
        for name in ("fcfs", "vtc")
    }
    return Finding(
        f"FCFS {found['fcfs']:.3f}, VTC {found['vtc']:.4f}",
        verdict(
            shape=found["vtc"] > found["fcfs"],
            quantity=abs(found["fcfs"] - 0.899) <= 0.01 and found["vtc"] >= 0.99,
        ),
    )


def judge_proportional(results: Results) -> Finding:
    """Judge that clients below their share get their demand, and the third the rest."""
    trace = results.traces["vtc-proportional vtc"]
    found = rates(trace, 60, 600)
    waits = [mean_ttft_s(trace, client) for client in range(3)]
    measured = np.array([189, 378, 778])
    return Finding(
        f"{found[0]:.0f} : {found[1]:.0f} : {found[2]:.0f}; mean time to first token "
        f"{waits[0]:.1f}, {waits[1]:.1f} and {waits[2]:.0f} s",
        verdict(
            shape=abs(found[1] / found[0] - 2) < 0.1 and max(waits[:2]) < waits[2] / 5,
            quantity=bool((np.abs(found / measured - 1) <= 0.05).all()),
        ),
    )


def judge_on_off(results: Results) -> Finding:
    """Judge that a backlogged on-off client gets as much as a client that is always on."""
    trace = results.traces["vtc-on-off-overload vtc"]
    one, other = rates(trace, 0, 600)
    gap = difference_of(trace)
    return Finding(
        f"{one:.0f} : {other:.0f}; accumulated difference {gap:,.0f}",
        verdict(shape=abs(one / other - 1) <= 0.05, quantity=gap <= 3 * 7_541),
    )


def judge_poisson(results: Results) -> Finding:
    """Judge the bound while both clients wait, for random arrivals of different lengths."""
    names = ("vtc-poisson-short-long", "vtc-poisson-short-long-2")
    gaps = [results.gaps[f"{name} vtc"] for name in names]
    totals = {
        local: [difference_of(results.traces[f"{name} {local}"]) for name in names]
        for local in ("vtc", "fcfs")
    }
    return Finding(
        f"while both wait {listed(gaps)}, of at most 40,000; from the beginning VTC "
        f"{listed(totals['vtc'])}, FCFS {listed(totals['fcfs'])}",
        verdict(
            shape=max(gaps) <= 40_000
            and all(one < other / 3 for one, other in zip(*totals.values(), strict=True)),
            quantity=totals["vtc"][0] <= 3 * 5_235,
        ),
    )


def judge_isolation(results: Results) -> Finding:
    """Judge that a client below its share is unaffected when the other's load rises."""
    vtc, fcfs = (
        ttft_s(trace, [trace.clients[0]], 99)
        for trace in (results.traces["vtc-increasing vtc"], results.traces["vtc-increasing fcfs"])
    )
    return Finding(
        f"client 0's P99 of the time to first token: VTC {vtc:.1f} s, FCFS {fcfs:.0f} s",
        verdict(shape=vtc < fcfs / 10, quantity=vtc <= 3 * 0.7 and 24 <= fcfs <= 96),
    )


def judge_shift(results: Results) -> Finding:
    """Judge that LCF pays back the service that a client missed while it was off."""
    traces = {name: results.traces[f"vtc-shift {name}"] for name in ("lcf", "vtc")}
    shares = {
        name: float(found[0] / found.sum())
        for name, trace in traces.items()
        for found in [rates(trace, 300, 600)]
    }
    waits = {name: mean_ttft_s(trace, 0) for name, trace in traces.items()}
    return Finding(
        f"client 0's share of the second phase: LCF {100 * shares['lcf']:.0f}%, VTC "
        f"{100 * shares['vtc']:.0f}%; its mean time to first token {waits['lcf']:.1f} and "
        f"{waits['vtc']:.1f} s",
        verdict(
            shape=shares["lcf"] > shares["vtc"] + 0.05 and waits["lcf"] < waits["vtc"],
            quantity=waits["lcf"] <= 3 * 4.1 and 16.3 / 3 <= waits["vtc"] <= 3 * 16.3,
            opposite=shares["lcf"] < shares["vtc"],
        ),
    )


PREDICTED = {"VTC": ("vtc", 104.0), "off by 50%": ("off by 50%", 12.5), "oracle": ("oracle", 0.5)}


def judge_predictions(results: Results) -> Finding:
    """Judge that better length predictions give smaller differences."""
    found = {
        name: differences(results.traces[f"{SHORT} {one}"]) for name, (one, _) in PREDICTED.items()
    }
    means = [one.mean for one in found.values()]
    within = [mean <= 3 * row[1] for mean, row in zip(means, PREDICTED.values(), strict=True)]
    return Finding(
        "; ".join(
            f"{name} {one.largest:.1f}/{one.mean:.1f}/{one.variance:.1f}"
            for name, one in found.items()
        )
        + f" (largest/mean/variance); {found['VTC'].throughput_tok_s:.0f} to "
        f"{found['oracle'].throughput_tok_s:.0f} tok/s",
        verdict(shape=means == sorted(means, reverse=True), quantity=all(within)),
    )


def judge_weights(results: Results) -> Finding:
    """Judge that service is in proportion to the weights."""
    found = rates(results.traces["vtc-weighted vtc"], 60, 360)
    parts = found / found.sum() / (np.arange(1, 5) / 10)
    return Finding(
        " : ".join(f"{rate:.0f}" for rate in found),
        verdict(
            shape=bool((np.abs(parts - 1) <= 0.1).all()),
            quantity=bool((np.abs(parts - 1) <= 0.03).all()),
        ),
    )


def judge_pool(results: Results) -> Finding:
    """Judge that a larger pool gives a larger difference."""
    small, large = (
        difference_of(results.traces[f"vtc-memory-pool {one}"]) for one in ("35,000", "65,000")
    )
    lengths = [difference_of(results.traces[f"vtc-length {one}"]) for one in (256, 512, 768)]
    return Finding(
        f"{small:,.0f} to {large:,.0f} (256, 512, 768 tokens at 35,000: {listed(lengths)})",
        verdict(
            shape=large > small, quantity=1.3 * small <= large <= 3 * small, opposite=large < small
        ),
    )
