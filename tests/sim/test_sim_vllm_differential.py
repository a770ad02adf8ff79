"""Test the simulated vLLM engine against vLLM 0.32.0's scheduler by step (see vllm_seam.py)."""

from collections import Counter

import pytest

from tests.sim.vllm_seam import why_absent
from tests.sim.vllm_streams import ask_ours, ask_vllm, assert_alike, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


@pytest.mark.parametrize("first_seed", [0, 40, 80])
def test_random_streams_are_served_the_same(first_seed):
    seen = Counter()
    for seed in range(first_seed, first_seed + 40):
        stream = random_stream(seed)
        theirs = ask_vllm(stream)
        assert_alike(theirs, ask_ours(stream), stream)
        for done in theirs.values():
            seen["preempted"] += len(done.preempted)
            seen["hits"] += sum(tokens > 0 for tokens in done.hits.values())
            seen["mixed"] += len(set(done.scheduled.values())) > 1
    assert min(seen.values()) > 50
