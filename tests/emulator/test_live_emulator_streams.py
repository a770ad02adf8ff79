"""Test token ids as segments: two prompts share exactly their common tokens."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench_emulator.tokens import TokenStreams

# few distinct tokens, so that many prefixes are shared
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def ids(tokens):
    return np.array(tokens, np.int32)


def common(one, other):
    """Return the length of the longest common prefix, token by token."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def shared(one, other):
    """Return how many tokens two prompts of segments share, by the definition of segments."""
    tokens = 0
    for left, right in zip(one, other, strict=False):
        if left.key != right.key:
            break
        tokens += min(left.length, right.length)
        if left.length != right.length:
            break
    return tokens


@given(st.lists(TOKENS, min_size=1, max_size=12))
def test_prompts_share_segments_like_tokens(prompts):
    streams = TokenStreams()
    made = [streams.prompt_of(ids(tokens))[0] for tokens in prompts]
    for tokens, prompt in zip(prompts, made, strict=True):
        assert prompt_tokens(prompt) == len(tokens)
        assert streams.ids_of(prompt, 0, len(tokens)) == tokens
        # later prompts have not changed earlier ones
        assert streams.prompt_of(ids(tokens))[0] == prompt
        for others, other in zip(prompts, made, strict=True):
            assert shared(prompt, other) == common(tokens, others)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=8), TOKENS)
def test_an_output_is_one_segment_of_the_prompts_that_continue_it(calls, turn):
    streams = TokenStreams()
    numbers = iter(range(100, 1_000))
    for tokens, answer in calls:
        prompt, end = streams.prompt_of(ids(tokens))
        first = next(numbers)  # two outputs of one prompt differ
        output, _ = streams.output_at(end, partial(ids, [first, *answer]))
        longer, _ = streams.prompt_of(ids([*tokens, first, *answer, *turn]))
        assert longer[: len(prompt) + 1] == (*prompt, output)
        assert output.length == 1 + len(answer)


def test_an_output_never_begins_with_a_token_known_to_follow():
    streams = TokenStreams()
    streams.prompt_of(ids([7, 8, 9]))
    _, inside = streams.prompt_of(ids([7, 8]))
    draws = iter([[9, 1], [5, 1]])
    output, tokens = streams.output_at(inside, lambda: ids(next(draws)))
    assert tokens.tolist() == [5, 1]
    draws = iter([[5, 2], [9, 2], [6, 2]])
    second, tokens = streams.output_at(inside, lambda: ids(next(draws)))
    assert tokens.tolist() == [6, 2]
    assert output.key != second.key


def test_streams_are_kept_with_all_their_prefixes_and_no_others():
    streams = TokenStreams()
    streams.prompt_of(ids([1, 2, 3]))
    kept, _ = streams.prompt_of(ids([1, 2, 4, 5]))
    streams.prompt_of(ids([9, 9]))
    streams.keep_only({kept[-1].key})
    assert streams.tokens == 5  # 1 2 3, which both share, and 4 5
    assert streams.prompt_of(ids([1, 2, 4, 5]))[0] == kept
    assert streams.tokens == 5
    streams.keep_only(())
    assert streams.tokens == 0
    assert streams.prompt_of(ids([1, 2, 4, 5]))[0] != kept
