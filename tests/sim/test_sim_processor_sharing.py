"""Test requests that decode together against recursions and formulas of queueing theory.

With memory for all and every prompt one prefill, requests share the engine: a step gives each one
token and takes the time of the profile's formula. The ends of requests then follow from the
lengths. If a step's cost is proportional to the batch, they follow from the theory of processor
sharing (Kleinrock): all are slowed down by 1 / (1 - rho) on average, whatever the distribution of
the lengths. Times are picoseconds.
"""

import random
from collections import Counter
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang import SGLangReplica
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import EngineLimits
from fairbench.hardware.timing import KVPool, TimingProfile
from fairbench.schedulers.local.fcfs import FCFS
from tests.strategies import examples

A100 = load_profile("a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10")
US = 10**6
POOL = 4_000_000


def serve(profile, jobs):
    """Serve (arrival, input tokens, output tokens) on a worker. Return the sequences."""
    clock, log = Clock(), ServiceLog(["x"])
    limits = EngineLimits(POOL, 10**6, 10**6, 10**6)
    worker = SGLangReplica(
        WorkerParts(0, clock, FCFS(FCFS.Params()), profile, log), limits, KVCache(POOL)
    )
    sequences = []
    for number, (arrival_ps, tokens, outputs) in enumerate(jobs):
        prompt = (Segment(f"in-{number}", tokens),)
        request = Request(number, "x", number, 0, prompt, tokens, outputs)
        sequence = Sequence(request, Segment(f"out-{number}", outputs), arrival_ps, lambda _: None)
        sequences.append(sequence)

        def submit(sequence=sequence):
            worker.submit(sequence)

        clock.at(arrival_ps, ARRIVE, 0, submit)
    while clock.next_ps() is not None:
        clock.step()
    return sequences


# the profile's formula again: coefficients in ms, whole picoseconds per step


def linear_ms(profile, tokens):
    c = profile.coefficients_ms
    smooth = (c["c_w"] ** c["p"] + (c["c_T"] * tokens) ** c["p"]) ** (1 / c["p"])
    return c["c0"] + profile.host_ms + smooth


def prefill_ps(profile, prompts):
    c = profile.coefficients_ms
    attention = sum(c["c_A"] * tokens * (tokens + 1) / 2 for tokens in prompts)
    ms = linear_ms(profile, sum(prompts)) + c["c_npf"] * len(prompts) + attention
    return round(ms * 1e9)


def step_ps(profile, size):
    """Return the time of a decode step of ``size`` sequences, without their context."""
    return round((linear_ms(profile, size) + profile.coefficients_ms["c_nd"] * size) * 1e9)


def token_ps(profile):
    """Return the cost of a token of context in each step."""
    return round(profile.coefficients_ms["c_K"] * 1e9)


def decode_ps(profile, contexts, steps):
    """Return the time of ``steps`` steps from given contexts, an arithmetic series."""
    size = len(contexts)
    tokens = steps * sum(contexts) + size * steps * (steps - 1) // 2
    return steps * step_ps(profile, size) + token_ps(profile) * tokens


def near(time_ps):
    """Allow a rounding difference of about a picosecond in each iteration."""
    return pytest.approx(time_ps, rel=1e-9, abs=100)


@pytest.mark.parametrize("size", [1, 2, 17, 300])
def test_equal_requests_end_together_at_the_time_of_the_formula(size):
    tokens, outputs = 530, 200
    done = serve(A100, [(0, tokens, outputs)] * size)
    first = prefill_ps(A100, [tokens] * size)
    contexts = [tokens + 1] * size  # the prompt and the token from its prefill
    end = first + decode_ps(A100, contexts, outputs - 1)
    assert [s.first_token_ps for s in done] == [near(first)] * size
    assert [s.finish_ps for s in done] == [near(end)] * size


def test_equal_requests_end_as_in_single_steps():
    # The same without any closed form: 200 requests, 49 steps, each added one by one.
    size, tokens, outputs = 200, 1_000, 50
    time = prefill_ps(A100, [tokens] * size)
    for made in range(1, outputs):
        time += step_ps(A100, size) + token_ps(A100) * size * (tokens + made)
    assert [s.finish_ps for s in serve(A100, [(0, tokens, outputs)] * size)] == [near(time)] * size


lengths = st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 400)), min_size=1, max_size=20)


@examples(40)
@given(lengths)
def test_requests_that_begin_together_end_by_the_recursion(pairs):
    # The shortest ends first. Between two ends, the batch stays the same.
    done = serve(A100, [(0, tokens, outputs) for tokens, outputs in pairs])
    time, made = prefill_ps(A100, [tokens for tokens, _ in pairs]), 1
    ends = {}
    for last in sorted({outputs for _, outputs in pairs}):
        left = [tokens + made for tokens, outputs in pairs if outputs > made]
        time, made = time + decode_ps(A100, left, last - made), last
        ends[last] = time
    assert [s.finish_ps for s in done] == [near(ends[outputs]) for _, outputs in pairs]


def shared(profile, jobs):
    """Return (first token, end) of each job: prefill a waiting job, else step all running ones."""
    time, times = 0, {}
    waiting, running = list(range(len(jobs))), {}
    while waiting or running:
        come = [job for job in waiting if jobs[job][0] <= time]
        if come:
            time += prefill_ps(profile, [jobs[job][1] for job in come])
            waiting = [job for job in waiting if job not in come]
            running |= dict.fromkeys(come, 1)
            times |= {job: [time, time] for job in come}
        elif running:
            time += decode_ps(profile, [jobs[job][1] + made for job, made in running.items()], 1)
            running = {job: made + 1 for job, made in running.items()}
        else:
            time = min(jobs[job][0] for job in waiting)
        for job in [job for job, made in running.items() if made == jobs[job][2]]:
            times[job][1] = time
            del running[job]
    return [tuple(times[job]) for job in range(len(jobs))]


jobs_in_time = st.lists(
    st.tuples(
        st.integers(0, 400_000).map(lambda us: us * US), st.integers(1, 500), st.integers(1, 30)
    ),
    min_size=1,
    max_size=10,
)


@examples(60)
@given(jobs_in_time)
def test_arrivals_are_prefilled_at_the_next_boundary_and_then_share(jobs):
    done = serve(A100, jobs)
    expected = shared(A100, jobs)
    assert [(s.first_token_ps, s.finish_ps) for s in done] == [
        (near(first), near(end)) for first, end in expected
    ]


# Pure sharing: an iteration costs TOKEN per token, and nothing else.

TOKEN = 10 * US
NAMES = ("c0", "c_w", "c_T", "c_A", "c_K", "c_nd", "c_npf")
PURE = TimingProfile(
    "pure",
    dict.fromkeys(NAMES, 0.0) | {"c_T": TOKEN / 10**9, "p": 1.0},
    0.0,
    "made up",
    KVPool(1, 0, 1, 0.5, 100),
)


def poisson_jobs(count, rho, draw, mean, seed):
    """Return one-token prompts, whose prefill takes as long as a step of one request."""
    rng, now, jobs = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rho / (mean * TOKEN))
        jobs.append((round(now), 1, draw(rng)))
    return jobs


LENGTHS = {
    "constant": lambda rng: 200,
    "two kinds": lambda rng: 700 if rng.random() < 1 / 6 else 100,
    "uniform": lambda rng: rng.randint(100, 300),
}


@pytest.mark.parametrize("lengths", LENGTHS)
def test_no_work_is_lost_or_added(lengths):
    """The amount of work in the system does not depend on how the engine is shared.

    Therefore, the engine is idle exactly when a queue served in order would be. Every busy period
    begins with an arrival and lasts as long as its work.
    """
    jobs = poisson_jobs(400, 0.7, LENGTHS[lengths], 200, seed=2)
    ends, free = set(), 0
    for arrival, _, outputs in jobs:
        if arrival > free:
            ends.add(free)
        free = max(free, arrival) + outputs * TOKEN
    ends.add(free)
    finished = {s.finish_ps for s in serve(PURE, jobs)}
    assert len(ends) > 50
    assert ends - {0} <= finished
    assert max(finished) == free


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_slowdown_is_that_of_processor_sharing_for_any_lengths(lengths):
    """E[T | x] = x / (1 - rho): short and long requests are slowed down alike.

    In order of arrival, the short kind would take 3.25 times as long as alone, the long one 1.32
    times. The tolerance is four standard errors over independent regeneration cycles, plus 1.5%
    because an arrival during a step waits for its end.
    """
    rho = 0.5
    done = serve(PURE, poisson_jobs(2000, rho, LENGTHS[lengths], 200, seed=3))
    cycle, free, slowdowns = 0, 0, {}
    for sequence in done:
        cycle += sequence.arrival_ps >= free
        work = sequence.output.length * TOKEN
        free = max(free, sequence.arrival_ps) + work
        kind = sequence.output.length if lengths == "two kinds" else 0
        slowdown = (sequence.finish_ps - sequence.arrival_ps) / work
        slowdowns.setdefault(kind, []).append((cycle, slowdown))
    for found in slowdowns.values():
        mean, error = cycle_mean(found)
        assert error < 0.08 / (1 - rho), "too few cycles to tell anything"
        assert abs(mean - 1 / (1 - rho)) <= 4 * error + 0.015 / (1 - rho)


def cycle_mean(found):
    """Return the mean of (cycle, value) and its standard error, a ratio estimate over cycles."""
    mean = sum(value for _, value in found) / len(found)
    sums = Counter()
    for cycle, value in found:
        sums[cycle] += value - mean
    return mean, sqrt(sum(one**2 for one in sums.values())) / len(found)
