"""Random streams of three clients, and the blocks that vLLM's and the simulated pool overwrite."""

from dataclasses import replace

from fairbench.engine.client_cache import memory_share
from fairbench.engine.contract import ManagedMemory
from fairbench.engine.logs import MemoryLog, WorkerMemoryLog
from fairbench.engine.vllm import empty_block_cache
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench_load.plugin_config import Evicting
from tests.sim.block_pool import watch_blocks
from tests.sim.sglang_streams import Tokens
from tests.sim.vllm_plugin_streams import CLIENTS, SETTINGS, ask_ours, ask_plugin
from tests.sim.vllm_seam import vllm
from tests.sim.vllm_streams import assert_alike, random_stream

POLICIES = {
    "lfu": {},
    "max-min": {},
    "quota": {"quota.percent": {"ann": 50.0, "bob": 30.0}},
    "quota-lending": {"quota-lending.percent": {"ann": 50.0}},
}


def stream_of(seed, asynchronous=None):
    stream = random_stream(seed, asynchronous)
    stream.policy = "fcfs"
    stream.limits = replace(stream.limits, enable_prefix_caching=True)
    return stream


def watched(gone):
    """Append the tokens up to the end of every block that vLLM overwrites to ``gone``."""

    def watch(engine, _):
        pool, bare = engine.scheduler.kv_cache_manager.block_pool, vllm().kv_cache_utils
        ended = {}  # hash of a block -> the tokens up to its end
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


def simulated(stream, local, policy, gone, *, shares=False):
    """Return the simulator's steps. ``gone`` gets the tokens of each overwritten block.

    With ``shares``, memory shares decide on admissions.
    """
    settings, tokens, size = SETTINGS.get(local, {}), Tokens(), stream.limits.block_size
    for number, arrival in enumerate(stream.arrivals):  # numbered as for vLLM
        tokens.of(((f"out-{number}", arrival.output),))
        tokens.of(arrival.prompt)

    memory = []

    def make_cache(clock):
        built = build_eviction(policy, POLICIES.get(policy, {}))
        pool_tokens = stream.limits.blocks * size
        built.prepare(Setup(CLIENTS, {}, pool_tokens))
        log = WorkerMemoryLog(MemoryLog(list(CLIENTS)), clock, 0)
        memory.append(ManagedMemory(built, log, shares))
        cache = empty_block_cache(stream.limits, memory[0])
        watch_blocks(cache, lambda prefix: gone.append(tokens.of(prefix)))
        return cache

    def prepare(worker):
        worker.share = memory_share(memory[0], worker.cache, worker.waiting)

    return ask_ours(stream, local, settings, make_cache, prepare=prepare)


def in_vllm(stream, local, policy, gone, *, shares=False):
    """Return vLLM's steps with the plugin inside. Arguments are those of ``simulated``."""
    settings = SETTINGS.get(local, {}) | POLICIES.get(policy, {})
    settings |= {"memory.share": True} if shares else {}
    evicting = Evicting(policy, CLIENTS)
    return ask_plugin(stream, local, settings, evicting=evicting, watch=watched(gone))


def evictions_in_vllm(seed, policy, local):
    """Return the tokens of each block that vLLM overwrites in a stream, in order."""
    gone = []
    in_vllm(stream_of(seed), local, policy, gone)
    return gone


def compare(seed, policy, local, asynchronous=None, *, shares=False):
    """Return the tokens of overwritten blocks, in vLLM and simulated. Every step must agree."""
    stream, theirs, ours = stream_of(seed, asynchronous), [], []
    steps = in_vllm(stream, local, policy, theirs, shares=shares)
    assert_alike(steps, simulated(stream, local, policy, ours, shares=shares), stream)
    return theirs, ours
