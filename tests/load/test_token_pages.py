"""Test token ids as pages: two prompts share exactly the segments of their common pages."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import truncate
from fairbench_load.token_pages import segments_of

BORDERS = [0, 7, 8, 9, 255, 256, 257, 271, 272, 511, 512, 513, 2048, 5000]
LENGTHS = st.integers(0, 70) | st.sampled_from(BORDERS)


def page_start(position):
    """Return the position at which the page of the token at ``position`` starts."""
    size = max(8, 2 ** (position.bit_length() - 1) // 16)
    return position // size * size


def page_borders(tokens):
    """Return all ends of pages of a prompt, including its own end."""
    starts = {page_start(position) for position in range(tokens)}
    return sorted(starts - {0} | {tokens}) if tokens else []


def shared_tokens(one, other):
    """Return the number of tokens in the leading segments that two prompts share."""
    total = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        total += ours.length
    return total


@pytest.mark.parametrize("tokens", BORDERS)
def test_pages_hold_a_sixteenth_of_the_tokens_before_them(tokens):
    ends, end = [], 0
    for segment in segments_of([7] * tokens):
        end += segment.length
        ends.append(end)
    assert ends == page_borders(tokens)


@given(LENGTHS, LENGTHS, LENGTHS)
def test_prompts_share_exactly_their_common_whole_pages(head, a, b):
    first, second = [1] * head + [2] * a, [1] * head + [3] * b
    common = head if a or b else None  # None: the prompts are equal
    borders = set(page_borders(len(first))) & set(page_borders(len(second)))
    expected = max((e for e in borders if common is None or e <= common), default=0)
    assert shared_tokens(segments_of(first), segments_of(second)) == expected
    assert prompt_tokens(segments_of(first)) == len(first)


IDS = st.lists(st.sampled_from([0, 1, 2**32 - 1]), max_size=40)


@given(IDS, IDS)
def test_equal_segments_mean_equal_prompts(one, other):
    assert (segments_of(one) == segments_of(other)) == (one == other)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=2000))
def test_an_array_gives_the_same_result_as_a_list(ids):
    assert segments_of(array("I", ids)) == segments_of(ids)


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_ids_have_32_bits(wrong):
    with pytest.raises(OverflowError):
        segments_of([1, wrong])


@given(LENGTHS, LENGTHS, LENGTHS)
def test_a_tree_of_pages_matches_down_to_the_last_shared_border(head, a, b):
    known, asked = [1] * head + [2] * a, [1] * head + [3] * b
    tree = LocationTree(LocationNode)
    tree.insert(segments_of(known), 5)
    pages = segments_of(asked)
    tokens, workers = tree.holders(tree.find(pages)[0])
    assert tokens == shared_tokens(pages, segments_of(known))
    assert workers == (1 << 5 if tokens else 0)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_evictions_at_any_page_empty_the_tree(cuts):
    # A server's cache divides prompts where they diverge, whatever the pages.
    pages = segments_of(range(max(cuts)))
    tree = LocationTree(LocationNode)
    tree.insert(pages, 0)
    for start, end in reversed(list(zip([0, *sorted(set(cuts))], sorted(set(cuts)), strict=False))):
        tree.evict(truncate(pages, end), end - start, 0)
        assert tree.holders(tree.find(pages)[0]).tokens == start
    assert not tree.root.children
