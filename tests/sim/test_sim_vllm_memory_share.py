"""Test memory shares in vLLM's own scheduler with the plugin, against the simulator.

For the same policy and random streams, every step and every overwritten block is the same. Runs in
the environment of tests/vllm_cpu/install.sh.
"""

from collections import Counter

import pytest

from tests.sim.vllm_eviction_streams import compare, in_vllm, stream_of
from tests.sim.vllm_plugin_streams import SCHEDULERS
from tests.sim.vllm_seam import why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


# All schedulers under max-min; the quotas differ only in the shares that they give.
PAIRS = [("max-min", local) for local in SCHEDULERS]
PAIRS += [(policy, local) for policy in ("quota", "quota-lending") for local in ("fcfs", "dlpm")]


@pytest.mark.parametrize(("policy", "local"), PAIRS)
def test_vllm_admits_and_evicts_as_the_simulator_does_under_memory_shares(policy, local):
    seen = Counter()
    for seed in range(8):
        theirs, ours = compare(seed, policy, local, shares=True)
        assert theirs == ours, seed
        seen["evictions"] += len(theirs)
        if seed < 5:
            stream = stream_of(seed)
            steps = in_vllm(stream, local, policy, [], shares=True)
            seen["unlike no shares"] += steps != in_vllm(stream, local, policy, [])
    assert seen["evictions"] > 180
    assert seen["unlike no shares"] > 1
