"""LRU eviction: the order of every engine's default."""

from __future__ import annotations

from fairbench.schedulers.eviction.policy import EvictionPolicy, Leaf, Rank
from fairbench.schedulers.params import NoParams


class LRU(EvictionPolicy):
    """Least recently used leaf first, regardless of the client."""

    name = "lru"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self.params = params

    def rank(self, leaf: Leaf) -> Rank:
        return 0, leaf.access
