"""Test that the vLLM block cache's work depends on forks and evictions, not on length."""

import sys

import pytest

from fairbench.core import Segment
from fairbench.engine.vllm_blocks import BlockCache

SIZE = 16


def lines_run(work):
    """Return the number of Python lines that ``work`` executes, which no clock disturbs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def keep(cache, owner, prompt, blocks):
    """Store a prompt in ``blocks`` blocks. Return a function that gives them back."""
    cache.take_blocks(blocks)
    node, _ = cache.store(owner, cache.root, prompt, (0, 0), blocks)
    return lambda: cache.give_back(owner, node, 0)


def filled(blocks, evicted):
    """Return a pool of ``blocks`` blocks, all filled with one prompt that is no longer used."""
    cache = BlockCache(blocks, SIZE, lambda prefix, tokens: evicted.append((prefix, tokens)))
    prompt = (Segment("system", 40), Segment("question", blocks * SIZE - 40))
    keep(cache, "owner", prompt, blocks)()
    return cache, prompt


def test_evicting_a_block_costs_the_same_in_long_prompts_as_in_short_ones():
    def per_block(blocks):
        cache, _ = filled(blocks, [])
        return lines_run(lambda: [cache.take_blocks(1) for _ in range(blocks)]) / blocks

    short, long = per_block(50), per_block(1_000)
    assert long == pytest.approx(short, rel=0.05)


def test_storing_a_prompt_costs_the_same_at_any_length():
    short, long = (lines_run(lambda n=n: filled(n, [])) for n in (50, 1_000))
    assert long == short


def test_adjacent_blocks_of_a_prompt_that_go_together_are_reported_once():
    evicted = []
    cache, (system, question) = filled(100, evicted)
    cache.take_blocks(30)
    cache.take_blocks(69)
    assert evicted == [
        ((system, question), 30 * SIZE),
        ((system, Segment("question", 70 * SIZE - 40)), 69 * SIZE),
    ]
    cache.take_blocks(1)
    assert evicted[2] == ((Segment("system", SIZE),), SIZE)


def test_two_prompts_evicted_in_one_step_are_reported_separately():
    evicted = []
    cache = BlockCache(6, SIZE, lambda prefix, tokens: evicted.append((prefix, tokens)))
    start = Segment("start", 2 * SIZE)
    one, other = (start, Segment("one", SIZE)), (start, Segment("other", SIZE))
    mine = keep(cache, "mine", one, 3)
    theirs = keep(cache, "theirs", other, 3)  # the first two blocks hold the same tokens
    mine()
    theirs()
    cache.take_blocks(6)
    assert evicted == [(one, SIZE), (other, 3 * SIZE)]
