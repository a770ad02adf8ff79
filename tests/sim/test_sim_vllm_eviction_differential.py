"""Test fairbench's eviction policies in vLLM's own block pool, against the simulator.

For the same policy and random streams, every step is the same, and every overwritten block has the
same tokens, in the same order. Runs in the environment of tests/vllm_cpu/install.sh.
"""

from collections import Counter
from dataclasses import replace

import pytest

from fairbench.hardware.engine_params import VLLMLimits
from fairbench_engines.mirrored_cache import OTHERS
from fairbench_load.plugin_config import Evicting
from tests.sim.vllm_eviction_streams import POLICIES, compare, evictions_in_vllm, stream_of, watched
from tests.sim.vllm_plugin_streams import CLIENTS, ask_plugin, fair_engine
from tests.sim.vllm_seam import why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

LIMITS = VLLMLimits(pool_tokens=1_000, max_num_batched_tokens=64, max_num_seqs=4)


@pytest.mark.parametrize("local", ["fcfs", "lpm", "dlpm"])
@pytest.mark.parametrize("policy", POLICIES)
def test_vllm_overwrites_blocks_in_the_order_of_the_simulator(policy, local):
    seen = Counter()
    for seed in range(12):
        theirs, ours = compare(seed, policy, local)
        assert theirs == ours, seed
        seen["evictions"] += len(theirs)
        if seed < 8:
            seen["unlike lru"] += evictions_in_vllm(seed, "lru", local) != theirs
    assert seen["evictions"] > 400
    assert seen["unlike lru"] > 2


def test_blocks_of_unknown_clients_go_first():
    """Requests of these clients are served like others."""
    for seed in range(8):
        stream, gone, engines = stream_of(seed), [], []

        def watch(engine, tokens, gone=gone, engines=engines):
            watched(gone)(engine, tokens)
            engines.append(engine)

        steps = ask_plugin(
            stream, "fcfs", {}, evicting=Evicting("max-min", ("ann", "bob")), watch=watch
        )
        assert sum(len(step.finished) for step in steps.values()) == len(stream.arrivals)
        held = engines[0].scheduler._eviction.residency()
        assert held.keys() == {"ann", "bob", OTHERS}
        limits = stream.limits
        assert 0 < sum(held.values()) <= limits.blocks * limits.block_size


def test_a_flood_takes_nothing_from_another_client_under_max_min():
    """The pool has 62 blocks. Under LRU, eve's flood overwrites ann's prompt of 20 blocks."""

    def hit(policy):
        engine = fair_engine(
            LIMITS, "fcfs", {}, lambda: 0.0, evicting=Evicting(policy, ("ann", "eve"))
        )
        for number, client in enumerate(["ann", *["eve"] * 4, "ann"]):
            first = 0 if client == "ann" else 1_000 * number
            engine.scheduler.add_request(
                engine.request(number, range(first, first + 320), [7] * 2, client=client)
            )
            while engine.step():
                pass
        return engine.hits["5"]

    assert (hit("lru"), hit("max-min")) == (0, 304)


def test_a_reset_empties_the_cache_and_the_accounts():
    evicting = Evicting("max-min", ("ann",))
    engine = fair_engine(LIMITS, "lpm", {}, lambda: 0.0, evicting=evicting)
    scheduler = engine.scheduler
    for number in range(3):
        scheduler.add_request(engine.request(number, range(300), [7], client="ann"))
        while engine.step():
            pass
        assert scheduler._eviction.residency()["ann"] == 18 * 16
        assert scheduler.reset_prefix_cache()
        assert scheduler._eviction.residency()["ann"] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "--no-enable-prefix-caching cannot be combined with an eviction policy"),
        ({"FAIRBENCH_EVICTION": '{"policy": "mxa-min", "clients": ["a"]}'}, "max-min"),
    ],
)
def test_unsupported_caches_end_the_server_with_a_line(change, says, capsys):
    limits = replace(LIMITS, enable_prefix_caching=False)
    evicting = Evicting("max-min", CLIENTS)
    with pytest.raises(SystemExit) as ended:
        fair_engine(limits, "fcfs", {}, lambda: 0.0, evicting=evicting, environment=change)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_function_with_other_arguments_is_named(monkeypatch, capsys):
    from fairbench_engines.vllm import eviction

    target = "vllm.v1.core.block_pool.BlockPool.free_blocks"
    monkeypatch.setitem(eviction.TARGETS, target, ("some_blocks",))
    with pytest.raises(SystemExit):
        fair_engine(LIMITS, "fcfs", {}, lambda: 0.0, evicting=Evicting("lfu", CLIENTS))
    said = capsys.readouterr().err
    assert f"vLLM's {target} takes the arguments self, ordered_blocks instead of" in said
    fair_engine(LIMITS, "fcfs", {}, lambda: 0.0, evicting=Evicting("lru", CLIENTS))
