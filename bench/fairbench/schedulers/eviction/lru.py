"""LRU eviction: the order of every engine's default."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.eviction.policy import EvictionPolicy, Leaf, Rank


class LRU(EvictionPolicy):
    """Evicts the least recently used leaf, regardless of the client."""

    name = "lru"

    @dataclass(frozen=True)
    class Params:
        """LRU has no parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def rank(self, leaf: Leaf) -> Rank:
        return 0, leaf.access
