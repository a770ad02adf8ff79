"""Reactions: the decision of a client when one of its requests ends.

The client sees only what a client of a server sees: the start and end of a request, and the cached
part of its prompt, which servers report at the end of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

LONG_S = 1.0  # seconds from arrival to first token from which on a request had to wait
LOST = 0.5  # fraction of the largest cached part of its prompts


class Ended(NamedTuple):
    """A finished request of the client: time to first token, prompt and cached tokens."""

    ttft_s: float
    input_tokens: int
    cached_tokens: int


Reaction: TypeAlias = Callable[[Ended], bool]
"""Returns, at the end of every request, whether all waiting programs start now; may keep state."""


class AtRefill:
    """A client that starts when its waiting request was served, and it may be in credit again."""

    def __call__(self, ended: Ended) -> bool:
        return ended.ttft_s >= LONG_S


class AtEviction:
    """A client that starts when fewer tokens of a prompt were cached, because of an eviction."""

    def __init__(self) -> None:
        self._best = 0.0

    def __call__(self, ended: Ended) -> bool:
        part = ended.cached_tokens / ended.input_tokens
        self._best = max(self._best, part)
        return part < LOST * self._best


REACTIONS: Mapping[str, Callable[[], Reaction]] = {"refill": AtRefill, "eviction": AtEviction}
