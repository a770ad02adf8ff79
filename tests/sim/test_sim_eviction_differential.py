"""Test fairbench's eviction policies in SGLang 0.5.23's own prefix trees, against the simulator.

For the same policy and random streams, every eviction is the same, in the same order. Only the
iteration may differ, because SGLang allocates a step's tokens before the step and the simulator
after it. Under memory shares, every admission is the same, too.
"""

import random
from contextlib import contextmanager
from functools import cache
from unittest import mock

import pytest

from fairbench.engine.client_cache import ClientCache, memory_share
from fairbench.engine.contract import ManagedMemory
from fairbench.engine.logs import MemoryLog, WorkerMemoryLog
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench_engines.sglang.eviction import EvictableTree
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import EVICTING
from fairbench_load.plugin_config import Evicting, plugin_config
from tests.sim.sglang_seam import VERSION, why_absent
from tests.sim.sglang_streams import ask_ours, ask_sglang, assert_alike, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent(EVICTING)), reason=why_absent(EVICTING) or "present"),
]

CLIENTS = {"x": 1.0, "y": 2.0, "z": 1.0}
POLICIES = {
    "lfu": {},
    "max-min": {},
    "quota": {"quota.percent": {"x": 50.0, "y": 30.0}},
    "quota-lending": {"quota-lending.percent": {"x": 50.0}},
}
SCHEDULERS = {"fcfs": {}, "lpm": {}, "dlpm": {"dlpm.quantum": 30}}
# schedulers that are also compared under memory shares
ALL_SCHEDULERS = SCHEDULERS | {
    "vtc": {},
    "vtc-predict": {"vtc-predict.predictor": "average"},
    "lcf": {},
    "preble-groups": {},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
}
SHARES = {"memory.share": True}


def stream_of(seed):
    """Return a random stream of three clients, one of which sends half of it."""
    stream, draw = random_stream(seed), random.Random(f"three clients {seed}")
    for arrival in stream.arrivals:
        arrival.client = draw.choice("xxxyyz")
    return stream


def hooks_of(scheduler, policy, more=()):
    settings = ALL_SCHEDULERS[scheduler] | POLICIES.get(policy, {}) | dict(more)
    name = scheduler.removesuffix("-skip")
    config = plugin_config(name, settings, CLIENTS, Evicting(policy, tuple(CLIENTS)))
    hooks = Hooks(config, VERSION)
    hooks.home.scheduler.prepare(Setup())  # the weights apply only to the eviction
    return hooks


def simulated(scheduler, policy, stream):
    """Return the evictions of the simulated engine, step by step."""
    return evictions(iterations(scheduler, policy, stream))


def iterations(scheduler, policy, stream, *, shares=False):
    """Return the iterations of the simulated engine, with or without memory shares."""
    settings, memory = ALL_SCHEDULERS[scheduler] | POLICIES[policy], []

    def cache_of(clock):
        built = build_eviction(policy, settings)
        built.prepare(Setup(tuple(CLIENTS), CLIENTS, stream.pool))
        log = WorkerMemoryLog(MemoryLog(list(CLIENTS)), clock, 0)
        memory.append(ManagedMemory(built, log, shares))
        return ClientCache(stream.pool, None, built, log)

    def prepare(worker):
        worker.share = memory_share(memory[0], worker.cache, worker.waiting)

    how = {"clients": tuple(CLIENTS), "cache_of": cache_of, "step_by_step": True}
    name = scheduler.removesuffix("-skip")
    return ask_ours(name, settings, stream, prepare=prepare, **how)


def without_evictions(done):
    """Return the iterations without their evictions, except those with nothing else."""
    for one in done.values():
        one.evicted = []
    return {step: one for step, one in done.items() if any(vars(one).values())}


def evictions(done):
    return [gone for _, iteration in sorted(done.items()) for gone in iteration.evicted]


@cache
def under_lru(scheduler, seed):
    """Return SGLang's evictions under its own policy, with which all policies are compared."""
    return evictions(ask_sglang("fcfs", stream_of(seed), hooks_of(scheduler, "lru")))


@contextmanager
def watched():
    """Return SGLang's evictions from an opaque tree, as the prompts that no longer match."""
    gone, drop = [], EvictableTree._drop

    def watching(tree, node):
        prefix, free = tree.mirror.prefix_of(node), tree.free()
        drop(tree, node)
        assert tree.free() - free == node.length
        key = tree._key(prefix.ids)
        left = tree._match_theirs(tree._base.MatchPrefixParams(key=key)).device_prefix_len
        assert left == node.depth - node.length
        gone.append((tuple(prefix.ids), node.length))

    with mock.patch.object(EvictableTree, "_drop", watching):
        yield gone


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_sglang_evicts_in_the_order_of_the_simulator(policy, scheduler):
    compared = unlike_lru = 0
    for seed in range(12):
        stream = stream_of(seed)
        theirs = ask_sglang("fcfs", stream, hooks_of(scheduler, policy))
        want = simulated(scheduler, policy, stream)
        assert evictions(theirs) == want, stream
        compared += len(want)
        if seed < 8:
            unlike_lru += want != under_lru(scheduler, seed)
    assert compared > 280
    assert unlike_lru > 2


@pytest.mark.parametrize("tree", ["rust", "python"])
@pytest.mark.parametrize("policy", ["lfu", "max-min", "quota"])
def test_each_tree_of_sglang_evicts_in_this_order(policy, tree):
    for seed in range(6):
        stream = stream_of(seed)
        with watched() as gone:
            ask_sglang("fcfs", stream, hooks_of("lpm", policy), tree=tree)
        assert gone == simulated("lpm", policy, stream), stream


def test_tokens_of_unknown_clients_go_first():
    """Requests of these clients are served like others."""
    gone = 0
    for seed in range(12):
        stream = stream_of(seed)
        names = dict.fromkeys("xz", 1.0)
        evicting = Evicting("max-min", tuple(names))
        hooks = Hooks(plugin_config("fcfs", {}, names, evicting), VERSION)
        done = ask_sglang("fcfs", stream, hooks)
        assert sum(len(one.finished) for one in done.values()) == len(stream.arrivals)
        gone += len(evictions(done))
        assert sum(hooks.eviction.residency().values()) <= stream.pool
    assert gone > 100


def test_lru_is_the_default_of_sglang_and_installs_nothing():
    plain = Hooks(plugin_config("fcfs", {}), VERSION)
    assert hooks_of("fcfs", "lru").by_target().keys() == plain.by_target().keys()
    assert hooks_of("fcfs", "max-min").by_target().keys() > plain.by_target().keys()
    assert "eviction" not in plain.report()


# All schedulers under max-min; the quotas differ only in the shares that they give.
PAIRS = [("max-min", scheduler) for scheduler in ALL_SCHEDULERS]
PAIRS += [(policy, name) for policy in ("quota", "quota-lending") for name in ("fcfs", "dlpm")]


@pytest.mark.parametrize(("policy", "scheduler"), PAIRS)
def test_sglang_admits_as_the_simulator_does_under_memory_shares(policy, scheduler):
    """Evictions are compared in order, and everything else in every iteration."""
    evicted = unlike_none = 0
    for seed in range(10):
        stream = stream_of(seed)
        theirs = ask_sglang("fcfs", stream, hooks_of(scheduler, policy, SHARES))
        if not unlike_none:
            unlike_none += theirs != ask_sglang("fcfs", stream, hooks_of(scheduler, policy))
        ours = iterations(scheduler, policy, stream, shares=True)
        assert evictions(theirs) == evictions(ours), stream
        evicted += len(evictions(ours))
        assert_alike(without_evictions(theirs), without_evictions(ours), stream)
    assert evicted > 200
    assert unlike_none > 0
