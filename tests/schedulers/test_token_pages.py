"""Token ids as pages: shared pages are shared segments, and nothing else is."""

from array import array
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.schedulers.token_pages import LONG_PAGE_TOKENS, PAGE_TOKENS, SMALL_PAGES, segments_of

LENGTHS = st.integers(0, 3 * LONG_PAGE_TOKENS) | st.sampled_from([2047, 2048, 2049, 2560, 3072])


@given(LENGTHS, LENGTHS, LENGTHS)
def test_prompts_share_exactly_their_common_whole_pages(head, a, b):
    first, second = segments_of([1] * head + [2] * a), segments_of([1] * head + [3] * b)
    ends = list(accumulate(segment.length for segment in first))
    whole = sum(end <= head for end in ends)
    if a and b:
        shared = sum(x == y for x, y in zip(first, second, strict=False))
        # A page that ends at the head is shared only if it ends there in both prompts.
        ends_there = sum(s.length for s in second[:whole]) == sum(s.length for s in first[:whole])
        assert shared == whole - (not ends_there)
        assert first[:shared] == second[:shared]
    assert prompt_tokens(first) == head + a


def test_page_lengths():
    lengths = [segment.length for segment in segments_of([0] * (2048 + 512 + 7))]
    assert lengths == [PAGE_TOKENS] * SMALL_PAGES + [LONG_PAGE_TOKENS, 7]
    assert segments_of([]) == ()


def test_the_same_tokens_further_on_are_another_segment():
    first, second = segments_of([1] * 64)
    assert first.key != second.key


def test_an_array_gives_what_a_list_gives():
    ids = list(range(5000))
    assert segments_of(array("I", ids)) == segments_of(ids)


def test_names_stay_the_same_between_versions():
    # Routers of one cluster must agree on them.
    assert segments_of([1, 2, 3]) == (Segment("21ecf47b35c916938392066a", 3),)
