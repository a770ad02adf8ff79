"""Our eviction policies in vLLM's own block pool, by way of the plugin, and simulated.

The same policy, the same random streams: every step is the same, and every block that is
overwritten has the same tokens, in the same order. Runs where vLLM is: tests/vllm_cpu/install.sh.
"""

from collections import Counter
from dataclasses import replace

import pytest
from sglang_streams import Tokens
from vllm_plugin_streams import CLIENTS, SETTINGS, ask_ours, ask_plugin
from vllm_seam import vllm, why_absent
from vllm_streams import assert_alike, random_stream

from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.live.plugins.config import Evicting
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.setup import Setup
from fairbench.sim.engine.contract import ManagedMemory
from fairbench.sim.engine.vllm.block_tree import prefix_of
from fairbench.sim.engine.vllm.worker import cache_of
from fairbench.sim.records.memory_log import MemoryLog, WorkerMemoryLog

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

POLICIES = {
    "lfu": {},
    "max-min": {},
    "quota": {"quota.percent": {"ann": 50.0, "bob": 30.0}},
    "quota-lending": {"quota-lending.percent": {"ann": 50.0}},
}
LIMITS = VLLMLimits(pool_tokens=1_000, max_num_batched_tokens=64, max_num_seqs=4)


def stream_of(seed):
    stream = random_stream(seed)
    stream.policy = "fcfs"
    stream.limits = replace(stream.limits, enable_prefix_caching=True)
    return stream


def watched(gone):
    """Append the tokens up to the end of every block that vLLM overwrites to ``gone``."""

    def watch(engine, _):
        pool, bare = engine.scheduler.kv_cache_manager.block_pool, vllm().kv_cache_utils
        ended = {}  # where the tokens of a block end, by hash
        store, remove = pool.cache_full_blocks, pool._remove_cached_block_hashes

        def stored(request, blocks, num_cached_blocks, num_full_blocks, *args, **named):
            size = engine.scheduler.block_size
            for number in range(num_cached_blocks, num_full_blocks):
                ids = tuple(request.all_token_ids[: (number + 1) * size])
                ended[request.block_hashes[number]] = ids
            return store(request, blocks, num_cached_blocks, num_full_blocks, *args, **named)

        def removed(block):
            keys = remove(block)
            gone.extend(ended[bare.get_block_hash(key)] for key in keys)
            return keys

        pool.cache_full_blocks, pool._remove_cached_block_hashes = stored, removed

    return watch


def simulated(stream, local, policy, gone):
    """What the simulator does, by step; ``gone`` gets the tokens of each overwritten block."""
    settings, tokens, size = SETTINGS.get(local, {}), Tokens(), stream.limits.block_size
    for number, arrival in enumerate(stream.arrivals):  # as they are numbered for vLLM
        tokens.of(((f"out-{number}", arrival.output),))
        tokens.of(arrival.prompt)

    def make_cache(clock):
        built = build_eviction(policy, POLICIES.get(policy, {}))
        pool_tokens = stream.limits.blocks * size
        built.prepare(Setup(CLIENTS, {}, pool_tokens))
        log = WorkerMemoryLog(MemoryLog(list(CLIENTS)), clock, 0)
        cache = cache_of(stream.limits, ManagedMemory(built, log))
        drop = cache.drop

        def dropped(node):
            ends = [node.depth - one * size for one in range(node.blocks)]
            gone.extend(tuple(tokens.of(prefix_of(node.prompt, end))) for end in ends)
            drop(node)

        cache.drop = dropped
        return cache

    return ask_ours(stream, local, settings, make_cache)


def in_vllm(stream, local, policy, gone):
    settings = SETTINGS.get(local, {}) | POLICIES.get(policy, {})
    evicting = Evicting(policy, CLIENTS)
    return ask_plugin(stream, local, settings, evicting=evicting, watch=watched(gone))


@pytest.mark.parametrize("local", ["fcfs", "lpm", "dlpm"])
@pytest.mark.parametrize("policy", POLICIES)
def test_vllm_overwrites_blocks_in_the_order_of_the_simulator(policy, local):
    seen = Counter()
    for seed in range(30):
        stream, theirs, ours, own = stream_of(seed), [], [], []
        steps = in_vllm(stream, local, policy, theirs)
        assert_alike(steps, simulated(stream, local, policy, ours), stream)
        assert theirs == ours, stream
        seen["evictions"] += len(theirs)
        seen["preemptions"] += sum(len(step.preempted) for step in steps.values())
        if seed < 8:
            in_vllm(stream, local, "lru", own)
            seen["unlike lru"] += own != theirs
    print(policy, local, dict(seen))
    assert seen["evictions"] > 1_000
    assert seen["unlike lru"] > 2
