"""Requests for the tests of the local schedulers."""

from __future__ import annotations

from itertools import count

from fairbench.core import Request, Segment, prompt_tokens


class Calls:
    """A maker of requests with fresh ids. A prompt consists of ``segments`` and its own tail."""

    def __init__(self) -> None:
        self._ids = count()

    def __call__(
        self, client: str, *segments: tuple[str, int], tail: int = 1, max_new: int = 10
    ) -> Request:
        number = next(self._ids)
        shared = tuple(Segment(key, length) for key, length in segments)
        own = (Segment(f"own{number}", tail),) if tail else ()
        prompt = shared + own
        return Request(number, client, number, 0, prompt, prompt_tokens(prompt), max_new)


class Trie:
    """The simplest prefix cache, which stores prompts token by token."""

    def __init__(self) -> None:
        self._root: dict = {}

    def insert(self, prompt: tuple[Segment, ...]) -> None:
        node = self._root
        for token in tokens_of(prompt):
            node = node.setdefault(token, {})

    def matched(self, prompt: tuple[Segment, ...], limit: int) -> int:
        """Return how many leading tokens are stored, at most ``limit``."""
        node, depth = self._root, 0
        for token in tokens_of(prompt):
            if depth == limit or token not in node:
                break
            node, depth = node[token], depth + 1
        return depth

    def evict(self, prefix: tuple[Segment, ...], tokens: int) -> None:
        """Evict the last ``tokens`` of ``prefix``."""
        path = list(tokens_of(prefix))
        kept = len(path) - tokens
        node = self._root
        for token in path[:kept]:
            node = node[token]
        del node[path[kept]]


def tokens_of(prompt: tuple[Segment, ...]):
    """Return the tokens of a prompt, each as (segment key, position in the segment)."""
    return ((key, position) for key, length in prompt for position in range(length))
