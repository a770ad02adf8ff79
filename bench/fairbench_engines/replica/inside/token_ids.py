"""Conversion of prompts from segments to token ids and back, for engines that need token ids."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


class TokenIds:
    """A converter that gives each segment key its own token ids, in the order of first use."""

    def __init__(self) -> None:
        # ``_ids`` maps each segment key to the token ids of the longest segment with this key.
        self._ids: dict[Hashable, array[int]] = {}
        # A segment key that needs more token ids gets a range of new ids. ``_runs`` has two lists
        # with an entry per range: the first id, and the key with its number of earlier ids.
        self._runs: tuple[list[int], list[tuple[Hashable, int]]] = [], []
        self._next = 1

    def of(self, prompt: Iterable[Sequence[Any]]) -> array[int]:
        """Return token ids that represent the segments of a prompt."""
        ids: array[int] = array("q")
        for key, length in prompt:
            known = self._ids.setdefault(key, array("q"))
            if len(known) < length:
                first, self._next = self._next, self._next + length - len(known)
                starts, runs = self._runs
                starts.append(first)
                runs.append((key, len(known)))
                known.extend(range(first, self._next))
            ids += known[:length]
        return ids

    def prompt(self, ids: Sequence[int]) -> tuple[tuple[Any, int], ...]:
        """Return the prompt with the token ids ``ids`` as a tuple of segments (key, length)."""
        starts, runs = self._runs
        segments: list[tuple[Any, int]] = []
        at = 0
        while at < len(ids):
            number = bisect_right(starts, ids[at]) - 1
            key, offset = runs[number]
            offset += ids[at] - starts[number]
            end = starts[number + 1] if number + 1 < len(starts) else self._next
            length = _consecutive(ids, at, min(end - ids[at], len(ids) - at))
            if offset:
                assert segments[-1] == (key, offset), "a segment is cut into runs in order"
                segments.pop()
            segments.append((key, offset + length))
            at += length
        return tuple(segments)


def _consecutive(ids: Sequence[int], at: int, most: int) -> int:
    """Return the number of consecutive ids from position ``at`` on, but at most ``most``."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if ids[at + middle - 1] == ids[at] + middle - 1:
            low = middle
        else:
            high = middle - 1
    return low
