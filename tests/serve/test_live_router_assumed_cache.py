"""Test that an assumed cache bounds a router's memory of a worker and follows its events."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench_serve.dispatcher import FOLLOWED_SLACK, AssumedCache

POOL = 2_000


def prompt_of(numbers):
    return tuple(Segment(f"page {number}", 8) for number in numbers)


def checked(assumed):
    """Return the tokens of an assumed cache, after a check of its bookkeeping."""
    cache = assumed._cache
    nodes = list(cache.nodes())
    tokens = sum(node.length for node in nodes)
    assert cache.free + tokens == cache.capacity
    assert (cache.evictable, cache.locked) == (tokens, 0)
    entries = [entry[-1] for entry in cache._leaves if not entry[-1].locks]
    assert {node for node in nodes if not node.children} <= set(entries)
    assert set(entries) <= set(nodes)
    assert len(entries) == len(set(entries))
    return tokens


def test_evictions_that_a_worker_reports_keep_its_assumed_cache_within_its_pool():
    """The worker is a cache whose evictions are events. Each prompt is new."""
    heard, draw = [], random.Random(1)
    assumed = AssumedCache(FOLLOWED_SLACK * POOL, lambda *evicted: heard.append(evicted))
    worker = AssumedCache(POOL, assumed.lose)
    for number in range(2_000):
        shared = [draw.randrange(8)] * 4
        prompt = prompt_of([*shared, *(f"{number}.{n}" for n in range(draw.randint(1, 12)))])
        for cache in (worker, assumed):
            cache.add_prompt(prompt)
    # Without following evictions, the router would hold twice the pool.
    assert checked(assumed) <= POOL
    assert checked(worker) <= POOL
    assert len(assumed._cache._leaves) <= 2 * sum(1 for _ in assumed._cache.nodes()) + 1
    assert heard == []  # the router got each eviction from the worker itself


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(prompt_of)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add_prompt", "touch_prompt", "lose"]), PROMPTS, st.integers(1, 48)),
    max_size=60,
)


@given(STEPS)
def test_any_lost_event_leaves_the_bookkeeping_right(steps):
    heard = []
    assumed = AssumedCache(80, lambda *evicted: heard.append(evicted))
    for what, prompt, tokens in steps:
        if what == "lose":
            gone, before = min(tokens, prompt_tokens(prompt)), len(heard)
            assumed.lose(prompt, gone)
            assert len(heard) == before
            held = assumed._cache.common_tokens(prompt, prompt_tokens(prompt))
            node, _ = assumed._cache.match(prompt, prompt_tokens(prompt))
            assert held <= prompt_tokens(prompt) - gone or node.children
        else:
            getattr(assumed, what)(prompt)
        assert checked(assumed) <= 80
    assumed.clear()
    assert checked(assumed) == 0


@given(STEPS)
def test_without_events_the_assumed_cache_equals_the_simulated_cache(steps):
    heard, plain = [], []
    assumed = AssumedCache(80, lambda *evicted: heard.append(evicted))
    same = AssumedCache(80, lambda *evicted: plain.append(evicted))
    same._cache = KVCache(80, lambda *evicted: plain.append(evicted))
    for what, prompt, _ in steps:
        if what != "lose":
            getattr(assumed, what)(prompt)
            getattr(same, what)(prompt)
    assert heard == plain
