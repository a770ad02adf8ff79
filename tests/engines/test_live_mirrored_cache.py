"""Test that a server's mirror of a radix tree evicts the same tokens in the same order."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench_engines.mirrored_cache import OTHERS, MirroredCache, Prefix
from tests.sim.memory_pool import Pool
from tests.strategies import prompts, tokens_of

CLIENTS = {"x": 1.0, "y": 2.0, "z": 1.0}
POLICIES = ["lfu", "lru", "max-min", "quota", "quota-lending"]
APART = (None, None)


class MirroredPool(Pool):
    """A pool that reports its changes to a mirror, which never asks what the pool evicts."""

    def __init__(self, policy, capacity, weights):
        super().__init__(policy, capacity, weights)
        self.names, self.ends, self.gone = {}, {}, []
        chosen = build_eviction(policy, {})
        chosen.prepare(Setup(tuple(weights), weights, capacity))
        self.mirror = MirroredCache(capacity, chosen, lambda: 0.0, self._drop)

    def _drop(self, node):
        self.gone.append((tuple(self.mirror.prefix_of(node).ids), node.length))

    def ids(self, prompt):
        return array(
            "q", [self.names.setdefault(one, len(self.names)) for one in tokens_of(prompt)]
        )

    def same(self):
        evicted = [
            (tuple(self.names[one] for one in prefix), count) for prefix, count in self.evicted
        ]
        return self.gone == evicted

    def start(self, client, prompt):
        mirror, prefix = self.mirror, Prefix(self.ids(prompt), APART)
        mirror.free, total = self.cache.free, len(prefix.ids)
        cached = super().start(client, prompt)
        node = mirror.matched(prefix, total)
        mirror.touch(node)
        if cached is None:
            return
        assert node.depth == cached
        request = self.running[-1].request
        mirror.lock(node)
        mirror.claim(node, request)
        mirror.take(client, total - cached)
        end = mirror.end_of(prefix, total)
        mirror.touch(end)
        mirror.lock(end)
        mirror.store(end, request, total - cached, last=False)
        mirror.unlock(node)
        self.ends[request] = end

    def decode(self):
        counts, size = {}, len(self.running)
        for one in self.running:
            counts[one.request.client] = counts.get(one.request.client, 0) + 1
        mirror = self.mirror
        mirror.free = self.cache.free
        if not size or size > self.cache.free + self.cache.evictable:
            return
        super().decode()
        if size > mirror.free:
            mirror.evict(size - mirror.free, counts)
        mirror.decode(counts)

    def finish(self, number):
        one, mirror = self.running[number], self.mirror
        request, end = one.request, self.ends.pop(one.request)
        last = end
        if one.private:
            text = (*request.prompt, Segment(f"out{request.request_id}", one.private))
            prefix = Prefix(self.ids(text), APART)
            last = mirror.end_of(prefix, len(prefix.ids))
            mirror.touch(last)
        super().finish(number)
        mirror.store(last, request, one.private, last=True)
        mirror.unlock(end)

    def retract(self, number):
        one = self.running[number]
        super().retract(number)
        self.mirror.residency.add_private(one.request.client, -one.private)
        self.mirror.unlock(self.ends.pop(one.request))


actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(list(CLIENTS)), prompts(lengths=(1, 2, 3, 5))),
        st.tuples(st.sampled_from(["decode", "finish", "finish", "retract"]), st.integers(0, 99)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(played=actions)
def test_a_mirror_evicts_exactly_as_the_tree(policy, played):
    pool = MirroredPool(policy, 24, CLIENTS)
    for what, detail in played:
        if what in CLIENTS:
            pool.start(what, detail)
        elif what == "decode":
            pool.decode()
        elif pool.running:
            getattr(pool, what)(detail % len(pool.running))
        assert pool.same()
        for text in {detail for what, detail in played if what in CLIENTS}:
            prefix, most = Prefix(pool.ids(text), APART), prompt_tokens(text) - 1
            assert pool.mirror.found(prefix, most) == pool.cache.prefix_tokens(text, most)
        mine = pool.mirror.residency
        for client in CLIENTS:
            assert mine.held(client) == pytest.approx(pool.cache.residency.held(client))


def test_an_unnamed_client_loses_its_tokens_first():
    pool = MirroredPool("max-min", 10, {"x": 1.0})
    mirror = pool.mirror
    unnamed = [Prefix(array("q", [at, at + 1]), APART) for at in (10, 20)]
    pool.start("x", (Segment("mine", 3),))
    request = pool.running[-1].request
    pool.finish(0)
    for prefix in unnamed:
        stranger = mirror.claiming(type(request)(7, "who", 0, 0, (), 2, 1))
        assert stranger.client == OTHERS
        mirror.free = 7
        mirror.take(OTHERS, 2)
        mirror.store(mirror.end_of(prefix, 2), stranger, 2, last=True)
    mirror.evict(5)
    assert [count for _, count in pool.gone] == [2, 2, 3]
    assert mirror.claiming(request) is request


def test_pages_of_a_client_that_share_their_first_token_stay_separate():
    pool = MirroredPool("lru", 16, {"x": 1.0})
    policy = pool.mirror.policy
    mirror = MirroredCache(16, policy, lambda: 0.0, lambda node: None, page=2)
    one, other = (Prefix(array("q", [1, *rest]), APART) for rest in ([2, 3, 4], [9, 3, 4]))
    assert mirror.end_of(one, 4) is not mirror.end_of(other, 4)
    assert mirror.matched(Prefix(array("q", [1, 2, 3, 5]), APART), 4).depth == 2
    apart = Prefix(one.ids, ("lora", None))
    assert mirror.matched(apart, 4) is mirror.root
    assert mirror.found(apart, 4) == (0, 0)
    assert mirror.found(Prefix(array("q", [1, 2, 3, 5]), APART), 4) == (2, 0)
    mirror.lock(mirror.end_of(one, 2))
    assert mirror.found(one, 4) == (4, 2)
    assert tuple(mirror.prefix_of(mirror.end_of(apart, 2))) == (array("q", [1, 2]), ("lora", None))
