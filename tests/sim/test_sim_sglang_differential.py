"""Test the simulated engine against SGLang's scheduler by iteration (see sglang_seam.py)."""

import random
from collections import Counter

import pytest

from tests.sim.sglang_seam import match_limit, why_absent
from tests.sim.sglang_streams import (
    Arrival,
    Stream,
    ask_ours,
    ask_sglang,
    assert_alike,
    random_prompt,
    random_stream,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


def compare(policy, stream):
    """Assert that both engines do the same in every iteration; return SGLang's actions."""
    settings = {"lpm.queue_limit": match_limit(stream.limit)} if policy == "lpm" else {}
    theirs = ask_sglang(policy, stream)
    assert_alike(theirs, ask_ours(policy, settings, stream), stream)
    return theirs


POLICIES = pytest.mark.parametrize("policy", ["fcfs", "lpm"])


@POLICIES
@pytest.mark.parametrize("first_seed", [0, 40, 80])
def test_random_streams_are_served_the_same(policy, first_seed):
    seen = Counter()
    for seed in range(first_seed, first_seed + 40):
        stream = random_stream(seed)
        for done in compare(policy, stream).values():
            seen["evicted"] += len(done.evicted)
            seen["retracted"] += len(done.retracted)
            seen["cached"] += sum(cached > 0 for _, cached, _ in done.prefills)
            seen["full chunks"] += any(tokens == stream.chunk for *_, tokens in done.prefills)
    assert seen["retracted"] > 5
    assert min(seen["evicted"], seen["cached"], seen["full chunks"]) > 100


@POLICIES
@pytest.mark.parametrize("limit", [128, 10_000])
def test_a_long_stream_is_served_the_same(policy, limit):
    """The limits are the server's default of 128 and no limit; at times more requests wait."""
    draw = random.Random(1)
    stream = Stream(2000, 256, 16_384, 100, 1.0, limit, full=False)
    for number in range(600):
        prompt = random_prompt(draw, stream.arrivals, number, 600)
        output = draw.randint(1, 60)
        stream.arrivals.append(Arrival(number // 300 * 300, prompt, output, output + 9))
    done = compare(policy, stream)
    assert sum(len(iteration.evicted) for iteration in done.values()) > 100
