"""Test Belady's rule by hand, and against all contents that a cache could keep."""

from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.metrics.belady import least_computed
from fairbench.sim.distinct_prefixes import DistinctPrefixes
from tests.sim.sim_helpers import prompt
from tests.strategies import examples, prompts, tokens_of


def computed(texts, capacity):
    """Return the tokens that Belady's rule computes for prompts that come one after the other."""
    tree = DistinctPrefixes()
    for number, text in enumerate(texts):
        tree.add(text, Segment(f"answer {number}", 1), {})
    at = np.arange(len(texts))
    return least_computed(tree.uses(10 * at, 10 * at + 5), capacity)


def fewest(texts, capacity):
    """Return the fewest computed tokens over all contents that a cache may keep."""
    wanted = [
        frozenset(whole[:end] for end in range(1, len(whole) + 1))
        for whole in map(tokens_of, texts)
    ]

    @lru_cache(None)
    def cost(number, kept):
        if number == len(wanted):
            return 0
        missing = len(wanted[number] - kept)
        useful = frozenset().union(*wanted[number + 1 :]) & (kept | wanted[number])
        return missing + min(cost(number + 1, left) for left in parts(useful, capacity))

    return cost(0, frozenset())


def parts(tokens, capacity):
    """Yield the largest parts of a set of tokens that fit the capacity."""
    return map(frozenset, combinations(sorted(tokens, key=str), min(len(tokens), capacity)))


@examples(60)
@given(st.lists(prompts(lengths=(1, 2)), min_size=1, max_size=4), st.integers(0, 4))
def test_no_cache_computes_fewer_tokens(texts, capacity):
    assert computed(texts, capacity) == fewest(tuple(texts), capacity)


A, B, C = prompt("a", 10), prompt("b", 10), prompt("c", 10)


@pytest.mark.parametrize(
    ("texts", "capacity", "expected"),
    [
        ([A, B, C, A, B, C], 30, 30),
        ([A, B, C, A, B, C], 20, 40),  # a or b stays, and c takes the room of the other one
        ([A, B, C, A, B, C], 15, 45),
        ([A, B, C, A, B, C], 0, 60),
        ([A, A, A], 4, 10 + 6 + 6),
        ([prompt("a", 10, "b", 5), prompt("a", 10, "c", 5), prompt("a", 4)], 10, 20),
        ([prompt("a", 10), prompt("a", 4), prompt("a", 10)], 4, 10 + 6),
        ([prompt("a", 5, "gone", 0, "b", 5), prompt("a", 5, "b", 5)], 10, 10),
    ],
)
def test_the_fewest_tokens_by_hand(texts, capacity, expected):
    assert computed(texts, capacity) == expected


@pytest.mark.parametrize(("capacity", "expected"), [(100, 10 + 3), (12, 13), (10, 15), (0, 25)])
def test_an_answer_is_kept_from_its_end_to_the_next_turn(capacity, expected):
    tree, answers = DistinctPrefixes(), {}
    answer = Segment("answer", 2)
    tree.add(A, answer, answers)
    tree.add((*A, answer, *prompt("next", 3)), Segment("last", 1), answers)
    times = np.array([0, 20]), np.array([10, 30])
    assert least_computed(tree.uses(*times), capacity) == expected


def test_uses_at_one_time_need_no_memory():
    tree = DistinctPrefixes()
    for number in range(3):
        tree.add(A, Segment(f"{number}", 1), {})
    times = np.zeros(3, np.int64), np.full(3, 9)
    assert least_computed(tree.uses(*times), 0) == 10


@examples(60)
@given(st.lists(prompts(lengths=(1, 2, 3, 5)), min_size=1, max_size=12))
def test_memory_only_helps_and_enough_of_it_is_an_unbounded_cache(texts):
    found = [computed(texts, capacity) for capacity in (0, 3, 9, 10**6)]
    assert found == sorted(found, reverse=True)
    tree = DistinctPrefixes()
    missing = [tree.add(text, Segment("x", 1), {}) for text in texts]
    assert found[0] == sum(map(prompt_tokens, texts))
    assert sum(missing) - len(texts) <= found[-1] <= sum(missing)
    assert found[-1] == tree.tokens


def test_no_prompt_needs_no_token():
    assert least_computed(DistinctPrefixes().uses(*np.zeros((2, 0), np.int64)), 5) == 0
