"""Test M/D/1: constant requests, one at a time on the engine, against queueing theory.

Poisson arrivals of four clients, with equal prompts and outputs that are not shared, one running
request: a server with constant service time s. At load rho = lambda * s the theory says (Pollaczek
and Khinchine, Takacs; W is the wait for admission)

    E[W] = rho s / (2 (1 - rho))        E[W^2] = 2 E[W]^2 + rho s^2 / (3 (1 - rho))
    P(W > 0) = rho                      P(queue empty) = (1 - rho) e^rho

E[W^2] holds for the order of arrival only. Tolerances are four standard errors, computed from the
variance between regeneration cycles (from one request that finds the engine idle to the next),
which are independent: by chance one seed in 16,000 would miss them.
"""

from functools import lru_cache
from itertools import pairwise
from math import exp, sqrt

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S
from fairbench.hardware.catalogue import load_profile
from fairbench.sim.run import simulate

INPUT, OUTPUT = 600, 20
CLIENTS, PROGRAMS = 4, 600
STANDARD_ERRORS = 4.0
LOADS = (0.3, 0.6, 0.8)
WORKLOAD = f"""
name = "constant"
description = "one call of constant lengths"
program = "chat"
latency = "program"
clients = {CLIENTS}
duration_s = 60.0
warmup_s = 0.0
max_drain_s = 600.0
[params]
turns_min = 1
turns_max = 1
think_mean_s = 0.0
user_tokens = {INPUT}.0
user_sigma = 0.0
output_tokens = {OUTPUT}.0
output_sigma = 0.0
max_new_tokens = {OUTPUT}
[scenarios.none]
description = "all the same"
rate = 1.0
"""


# one queue, because there is no HTTP and no tokenizer
GPU = "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"


def service_ps():
    """Return the time of one prefill and OUTPUT - 1 decode steps, by the profile's formula."""
    profile = load_profile(GPU)
    c, host = profile.coefficients_ms, profile.host_ms

    def linear(tokens):
        return c["c0"] + host + (c["c_w"] ** c["p"] + (c["c_T"] * tokens) ** c["p"]) ** (1 / c["p"])

    prefill = linear(INPUT) + c["c_npf"] + c["c_A"] * INPUT * (INPUT + 1) / 2
    contexts = range(INPUT + 1, INPUT + OUTPUT)
    decode = sum(linear(1) + c["c_nd"] + c["c_K"] * context for context in contexts)
    return (prefill + decode) * 1e9


@lru_cache
def result_at(folder, rho):
    path = folder / "constant.toml"
    path.write_text(WORKLOAD, encoding="utf-8")
    rate = rho / (service_ps() / PS_PER_S) / CLIENTS
    flags = {"workload": str(path), "scenario": "none", "scheduler": "fcfs", "seed": 1}
    flags |= {"request_rate": rate, "num_programs": PROGRAMS, "gpu": GPU}
    return simulate(resolve(flags, {"engine.max_running_requests": 1}))


@pytest.fixture(scope="module", params=LOADS)
def queue(request, tmp_path_factory):
    """Return (rho, s, requests in order of arrival, summary), times in seconds."""
    folder = tmp_path_factory.getbasetemp()
    result = result_at(folder, request.param)
    columns = result.requests
    order = np.argsort(columns["arrival_s"], kind="stable")
    return (
        request.param,
        service_ps() / PS_PER_S,
        {name: np.asarray(column)[order] for name, column in columns.items()},
        result.summary,
    )


def cycle_mean(values, starts):
    """Return the mean of ``values`` and its standard error over cycles (a ratio estimate)."""
    sums = np.add.reduceat(values, starts)
    counts = np.diff([*starts, len(values)])
    mean = values.mean()
    return mean, sqrt(np.sum((sums - mean * counts) ** 2)) / len(values)


def close(values, starts, theory, *, telling=0.2):
    mean, error = cycle_mean(np.asarray(values, dtype=float), starts)
    assert error < telling * theory, "too few cycles to tell anything"
    return abs(mean - theory) <= STANDARD_ERRORS * error


def test_every_wait_follows_from_the_previous_one(queue):
    # Lindley: W' = max(0, W + s - gap), to the picosecond's rounding.
    _, s, requests, _ = queue
    arrival, wait = requests["arrival_s"], requests["admitted_s"] - requests["arrival_s"]
    for one, other in pairwise(range(len(arrival))):
        gap = arrival[other] - arrival[one]
        assert wait[other] == pytest.approx(max(0.0, wait[one] + s - gap), abs=1e-8)
    assert requests["finish_s"] - requests["admitted_s"] == pytest.approx(s, abs=1e-8)


def test_waits_are_those_of_m_d_1(queue):
    rho, s, requests, _ = queue
    wait = requests["admitted_s"] - requests["arrival_s"]
    wait[wait < 1e-9] = 0.0
    starts = np.flatnonzero(wait == 0.0)
    mean = rho * s / (2 * (1 - rho))
    assert len(wait) == CLIENTS * PROGRAMS
    assert starts[0] == 0
    assert close(wait, starts, mean)
    # Last come, first served would have 1 / (1 - rho) times as much.
    square = 2 * mean**2 + rho * s**2 / (3 * (1 - rho))
    assert close(wait**2, starts, square, telling=rho / (1 - rho) / STANDARD_ERRORS)
    assert close(wait > 0, starts, rho)


def test_the_summary_agrees_with_the_theory(queue):
    rho, s, requests, summary = queue
    wait = requests["admitted_s"] - requests["arrival_s"]
    prefill = requests["first_token_s"] - requests["admitted_s"]
    assert np.ptp(prefill) == pytest.approx(0.0, abs=1e-9)
    assert summary["mean_ttft_ms"] == pytest.approx(1000 * (wait.mean() + prefill[0]), rel=1e-9)
    assert summary["mean_e2el_ms"] == pytest.approx(1000 * (wait.mean() + s), rel=1e-9)
    assert summary["output_throughput"] == pytest.approx(
        OUTPUT * len(wait) / requests["finish_s"].max(), rel=1e-9
    )
    # The fraction of time in which the queue is empty, cycle by cycle. A cycle's empty time is its
    # length minus the waits of its requests one after the other, behind the one in service.
    window = summary["window_end_s"] - summary["window_start_s"]
    starts = np.flatnonzero(wait < 1e-9)
    queued = [
        _union(requests["arrival_s"][one:end], requests["admitted_s"][one:end])
        for one, end in pairwise([*starts, len(wait)])
    ]
    length = np.diff([*requests["arrival_s"][starts], requests["arrival_s"][-1]])
    theory = 1 - (1 - rho) * exp(rho)
    error = sqrt(np.sum((np.array(queued) - theory * length) ** 2)) / window
    assert error < 0.2 * theory
    assert abs(1 - summary["queue_empty_share"] - theory) <= STANDARD_ERRORS * error


def _union(starts, ends):
    """Return the length of a union of intervals that are in order of their starts."""
    total, reach = 0.0, -1.0
    for start, end in zip(starts, ends, strict=True):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
