"""Exact conversion of token ids to segments and back: prompts share exactly the equal tokens.

The pages of ``schedulers.token_pages`` would round every match down, and an engine that misses the
last half page of each cached prefix computes more than the simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.core import Prompt, Segment

Ids: TypeAlias = NDArray[np.int32]
FORK_TRIES = 16


class _Stream:
    """The tokens of one key, and the streams that branch off, by (offset, first token)."""

    __slots__ = ("forks", "ids", "key", "place")

    def __init__(self, key: str, ids: Ids, place: Place | None) -> None:
        self.key = key
        self.ids = ids
        self.place = place  # where it parts from its parent
        self.forks: dict[tuple[int, int], _Stream] = {}


class Place(NamedTuple):
    """A position in a stream, after ``offset`` tokens."""

    stream: _Stream
    offset: int


class TokenStreams:
    """A tree of all prompts and outputs so far, which branches where their tokens differ.

    ``tokens`` counts the stored tokens. Nothing is dropped except by ``keep_only``.
    """

    def __init__(self) -> None:
        self._root = _Stream("", np.empty(0, np.int32), None)
        self._streams: dict[str, _Stream] = {}  # in order of creation: children after parents
        self._created = 0
        self.tokens = 0

    def prompt_of(self, ids: Ids) -> tuple[Prompt, Place]:
        """Return the prompt of these tokens, and the place where the prompt ends."""
        segments = []
        at, start = Place(self._root, 0), 0
        while start < len(ids):
            rest = ids[start:]
            stream = at.stream.forks.get((at.offset, int(rest[0])))
            if stream is None:
                stream = self._fork(at, rest.copy())
            taken = _common(stream.ids, rest)
            segments.append(Segment(stream.key, taken))
            at, start = Place(stream, taken), start + taken
        return tuple(segments), at

    def output_at(self, place: Place, draw: Callable[[], Ids]) -> tuple[Segment, Ids]:
        """Draw a new output after the prompt that ends at ``place``; return segment and tokens.

        Its first token differs from all known continuations there. (If every draw fails to differ,
        the output replaces another one, for which later prompts then find nothing cached.)
        """
        stream, offset = place
        follows = int(stream.ids[offset]) if offset < len(stream.ids) else None
        for _ in range(FORK_TRIES):
            ids = draw()
            first = int(ids[0])
            if first != follows and (offset, first) not in stream.forks:
                break
        return Segment(self._fork(place, ids).key, len(ids)), ids

    def _fork(self, place: Place, ids: Ids) -> _Stream:
        self._created += 1
        stream = _Stream(str(self._created), ids, place)
        place.stream.forks[place.offset, int(ids[0])] = stream
        self._streams[stream.key] = stream
        self.tokens += len(ids)
        return stream

    def ids_of(self, prompt: Prompt, start: int, end: int) -> list[int]:
        """Return tokens ``start`` to ``end`` of a prompt that this object made."""
        found: list[int] = []
        for key, length in prompt:
            if start < length and end > 0:
                ids = self._streams[key].ids[max(start, 0) : min(end, length)]
                found.extend(ids.tolist())
            start, end = start - length, end - length
        return found

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget every stream that is not one of ``keys`` and does not lead to one."""
        for stream in reversed(list(self._streams.values())):
            if stream.forks or stream.key in keys:
                continue
            assert stream.place is not None
            parent, offset = stream.place
            name = offset, int(stream.ids[0])
            if parent.forks.get(name) is stream:
                del parent.forks[name]
            del self._streams[stream.key]
            self.tokens -= len(stream.ids)


def _common(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    differ = one[:shorter] != other[:shorter]
    first = int(differ.argmax())
    return first if differ[first] else shorter
