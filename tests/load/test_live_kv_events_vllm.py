"""Test KV events of vLLM 0.32.0's own classes: their encoding, and its block pool's reports.

Runs in the environment of tests/vllm_cpu/install.sh.
"""

import msgspec
import pytest

from fairbench.core import Segment
from fairbench_load.kv_event_wire import AllBlocksCleared, BlockRemoved, BlockStored, decode
from fairbench_serve.kv_events import BlockIndex
from tests.sim.vllm_seam import RealEngine, vllm, why_absent
from tests.sim.vllm_streams import Tokens, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


def over_the_wire(batch):
    return decode([b"", bytes(8), msgspec.msgpack.encode(batch)]).batch


@pytest.mark.parametrize("name", [2**64 - 1, b"\x01" * 32])
def test_events_of_vllms_classes_are_decoded(name):
    theirs = vllm().kv_events
    stored = theirs.BlockStored([name], name, [1, 2], 2, 4, "GPU", "adapter", [("salt",)], 1)
    removed = theirs.BlockRemoved([name], "CPU", 2)
    batch = theirs.KVEventBatch(1.5, [stored, removed, theirs.AllBlocksCleared()], 0)
    assert over_the_wire(batch).events == [
        BlockStored([name], name, [1, 2], 2, 4, "GPU", "adapter", [["salt"]], 1),
        BlockRemoved([name], "CPU", 2),
        AllBlocksCleared(),
    ]


class Recorder:
    """A recorder in place of vLLM's publisher."""

    def __init__(self, index):
        self.index = index

    def publish(self, batch):
        self.index.apply(over_the_wire(batch).events)


@pytest.mark.parametrize("seed", range(12))
def test_the_index_equals_vllms_block_pool(seed):
    """The comparison follows each step and each eviction of streams, mostly in small pools."""
    stream, tokens, gone = random_stream(seed), Tokens(), []
    engine = RealEngine(stream.limits, stream.policy, kv_events=True)
    index = BlockIndex(lambda prefix, tokens: gone.append(tokens), lambda: None)
    engine.scheduler.kv_event_publisher = Recorder(index)
    pool = engine.scheduler.kv_cache_manager.block_pool
    convert = vllm().kv_cache_utils.maybe_convert_block_hash
    bare = vllm().kv_cache_utils.get_block_hash
    most = 0
    for number, arrival in enumerate(stream.arrivals):
        output = tokens.of((Segment(f"out-{number}", arrival.output),))
        request = engine.request(number, tokens.of(arrival.prompt), output, arrival.max_new)
        engine.scheduler.add_request(request)
        for _ in range(3):
            engine.step()
            cached = {convert(bare(key)) for key in pool.cached_block_hash_to_block._cache}
            assert {name for _, name in index._runs} == cached
            most = max(most, len(cached))
    assert gone or len(index) == most
