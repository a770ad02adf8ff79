"""A request in a worker's waiting queue, and its position in match order."""

from __future__ import annotations

from typing import Any, Generic

from fairbench.core import Prompt
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.prefix_cache import N
from fairbench.sim.sequence import Sequence

DEPRIORITIZED, ARRIVED = 1, 2  # sort keys behind every -matched
Order = tuple[int, int, "Entry[Any]"]  # (sort key, rank among equal keys, unique)


class Entry(Generic[N]):
    """A waiting request. ``key, rank`` is its position in the list that SGLang would sort."""

    __slots__ = (
        "admitted",
        "before",
        "dirty",
        "head",
        "key",
        "node",
        "number",
        "place",
        "placed",
        "prompt",
        "rank",
        "request",
        "sequence",
        "total",
    )

    def __init__(self, sequence: Sequence, number: int) -> None:
        self.sequence = sequence
        self.request = sequence.request
        self.prompt = sequence.prompt
        self.total = sequence.total
        self.number = number
        self.node: N | None = None
        self.place: Place = (0, 0)
        self.key, self.rank = ARRIVED, number
        self.before = (0, 0, 0)  # a refresh, and the key and rank that it found
        self.head: Prompt | None = None  # its cold group, if it is cold
        self.dirty = True
        self.placed = False  # in the sorted list
        self.admitted = False

    @property
    def order(self) -> Order:
        """The position in the sorted list, built on demand: a stored tuple would be a cycle."""
        return self.key, self.rank, self

    def touched_at(self, refresh: int) -> tuple[int, int]:
        """Return the position of the entry in the list of the last refresh."""
        moved_at, key, rank = self.before
        return (key, rank) if moved_at == refresh else (self.key, self.rank)

    @property
    def matched(self) -> int:
        """Return the cached tokens by which LPM sorts. Precondition: attached."""
        assert self.node is not None
        depth, most = self.node.depth, self.total - 1
        return depth if depth < most else most
