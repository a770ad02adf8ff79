"""Test that a mirror of vLLM's block pool evicts the same blocks in the same order."""

from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench_engines.mirrored_cache import OTHERS, claiming
from fairbench_engines.vllm.mirrored_blocks import MirroredBlocks
from tests.sim.block_pool import BlockPool, watch_blocks
from tests.sim.sim_helpers import prompt
from tests.strategies import prompts, tokens_of

CLIENTS = {"x": 1.0, "y": 2.0, "z": 1.0}
POLICIES = ["lfu", "lru", "max-min", "quota", "quota-lending"]
SIZE = 2


class MirroredPool(BlockPool):
    """A pool that reports its changes to a mirror, which never asks what the pool evicts."""

    def __init__(self, policy, blocks, weights):
        super().__init__(policy, blocks, SIZE, weights)
        self.overwritten, self.gone, self.ends = [], [], {}
        watch_blocks(self.cache, lambda prefix: self.overwritten.append(tokens_of(prefix)))
        chosen = build_eviction(policy, {})
        chosen.prepare(Setup(tuple(weights), weights, blocks * SIZE))
        self.mirror = MirroredBlocks(blocks, SIZE, chosen, lambda: 0.0, self._overwrite)
        self.numbers = count()

    def _overwrite(self, theirs):
        self.gone.append(self.ends.pop(theirs.block_id))

    def _use(self, one, cached):
        super()._use(one, cached)
        one.theirs, node = [], self.mirror.root
        for end in range(SIZE, one.node.depth + 1, SIZE):
            node = node.children[tokens_of(one.text)[:end]]
            one.theirs.append(node.blocks[0].theirs)
        one.end = self.mirror.use(one.theirs, one.request)

    def _take(self, one, blocks):
        super()._take(one, blocks)
        client = one.request.client
        self.mirror.make_room(blocks, client)
        new = [SimpleNamespace(block_id=next(self.numbers)) for _ in range(blocks)]
        self.mirror.take(new, client)
        one.theirs += new

    def _store(self, one):
        before = one.node.depth
        super()._store(one)
        tokens = tokens_of(one.text)
        hashes = [tokens[:end] for end in range(before + SIZE, one.node.depth + 1, SIZE)]
        blocks = one.theirs[before // SIZE : one.node.depth // SIZE]
        self.ends |= {block.block_id: end for block, end in zip(blocks, hashes, strict=True)}
        one.end = self.mirror.store(one.end, hashes, blocks)

    def _retain(self, one):
        super()._retain(one)
        self.mirror.retain(one.end, one.request)

    def _give_back(self, one):
        super()._give_back(one)
        self.mirror.give_back(reversed(one.theirs))


actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(list(CLIENTS)), prompts(lengths=(1, 2, 3, 5, 8))),
        st.tuples(st.sampled_from(["decode", "finish", "finish", "retract"]), st.integers(0, 99)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(played=actions)
@settings(deadline=None)
def test_a_mirror_evicts_exactly_as_the_simulated_pool(policy, played):
    pool = MirroredPool(policy, 14, CLIENTS)
    for what, detail in played:
        if what in CLIENTS:
            pool.start(what, detail)
        elif what == "decode":
            pool.decode()
        elif pool.running:
            getattr(pool, what)(detail % len(pool.running))
        assert pool.gone == pool.overwritten
        for text in {detail for what, detail in played if what in CLIENTS}:
            most, tokens = prompt_tokens(text) - 1, tokens_of(text)
            hashes = [tokens[:end] for end in range(SIZE, most + 1, SIZE)]
            assert pool.mirror.found(hashes) == pool.cache.prefix_tokens(text, most)
        for client in CLIENTS:
            held = pool.mirror.residency.held(client)
            assert held == pytest.approx(pool.cache.residency.held(client))


def test_an_unnamed_client_loses_its_blocks_first():
    pool = MirroredPool("max-min", 6, {"x": 1.0})
    mirror = pool.mirror
    pool.start("x", prompt("mine", 4))
    stranger = claiming(pool.running[0].request, ("y",))
    assert stranger.client == OTHERS
    pool.finish(0)
    blocks = [SimpleNamespace(block_id=100 + number) for number in range(3)]
    mirror.make_room(3, OTHERS)
    mirror.take(blocks, OTHERS)
    pool.ends |= {100: "first", 101: "second", 102: "third"}
    mirror.store(mirror.root, ["first", "second", "third"], blocks)
    mirror.give_back(reversed(blocks))
    mirror.make_room(5, "x")
    mine = tokens_of(prompt("mine", 4))
    assert pool.gone == ["third", "second", "first", mine]


def test_a_spare_block_is_evicted_before_older_used_blocks():
    pool = MirroredPool("lfu", 4, CLIENTS)
    for client, name, tokens in (("y", "older", 2), ("x", "twice", 4)):
        pool.start(client, prompt(name, tokens))
        pool.finish(0)
    pool.start("x", prompt("twice", 4))  # the last block of this prompt is computed again
    pool.start("z", prompt("new", 2))
    assert pool.gone == pool.overwritten == [tokens_of(prompt("twice", 4))]
