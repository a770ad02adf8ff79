"""Hypothesis strategies, and prompts as plain tokens for brute-force oracles."""

from hypothesis import settings
from hypothesis import strategies as st

from fairbench.core import Segment

# lengths around the 32 tokens of in-batch deprioritisation, and short ones that split prompts
LENGTHS = (1, 2, 5, 31, 32, 33, 40)


def examples(whole):
    """Return settings for ``whole`` examples in .ci/run, and a quarter in the fast suite."""
    return settings(max_examples=max(5, whole * settings().max_examples // 100))


def segments(keys="abc", lengths=LENGTHS):
    """Draw a segment of a few keys, so that prompts often share prefixes."""
    return st.builds(Segment, st.sampled_from(keys), st.sampled_from(lengths))


def prompts(keys="abc", lengths=LENGTHS, max_size=3):
    """Draw a prompt of a few segments."""
    return st.lists(segments(keys, lengths), min_size=1, max_size=max_size).map(tuple)


def tokens_of(prompt):
    """Return the prompt token by token. A token is (segment key, offset)."""
    return tuple((key, offset) for key, length in prompt for offset in range(length))


def common(one, other):
    """Return the length of the common prefix of two token tuples."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def prefixes_of(tokens):
    """Return every non-empty prefix."""
    return [tokens[:length] for length in range(1, len(tokens) + 1)]
