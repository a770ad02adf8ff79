"""Test the simulated vLLM engine against vLLM 0.32.0's scheduler by step (see vllm_seam.py)."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.vllm_seam import why_absent
from tests.sim.vllm_streams import ask_ours, ask_vllm, assert_alike, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


def test_random_streams_are_served_the_same():
    seen = Counter()
    for seed in range(40):
        stream = random_stream(seed)
        theirs = ask_vllm(stream)
        assert_alike(theirs, ask_ours(stream), stream)
        for done in theirs.values():
            seen["preempted"] += len(done.preempted)
            seen["hits"] += sum(tokens > 0 for tokens in done.hits.values())
            seen["mixed"] += len(set(done.scheduled.values())) > 1
    assert min(seen.values()) > 50


def test_long_prompts_get_as_many_tokens_of_a_step():
    """The threshold lets several prompts be incomplete, and lets prompts precede decoding."""
    seen = Counter()
    for seed in range(60):
        stream, threshold = random_stream(seed), random.Random(f"most {seed}").choice([1, 3, 8, 30])
        stream.limits = replace(stream.limits, long_prefill_token_threshold=threshold)
        theirs = ask_vllm(stream)
        assert_alike(theirs, ask_ours(stream), stream)
        budget = stream.limits.max_num_batched_tokens
        for done in theirs.values():
            tokens = done.scheduled.values()
            seen["cut"] += list(tokens).count(threshold) > 1 and threshold > 1
            seen["alone"] += len(tokens) == 1 and max(tokens) > threshold
            seen["used up"] += sum(tokens) == budget and len(tokens) > 1
            seen["preempted"] += len(done.preempted)
            if len(tokens) > 1 and not done.hits:
                assert max(tokens) <= threshold
    assert min(seen.values()) > 20, seen
