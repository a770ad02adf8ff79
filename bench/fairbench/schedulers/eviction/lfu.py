"""LFU eviction, the other order of SGLang's radix cache."""

from __future__ import annotations

from fairbench.schedulers.eviction.policy import EvictionPolicy, Leaf, Rank
from fairbench.schedulers.params import NoParams


class LFU(EvictionPolicy):
    """Evicts the leaf that the fewest requests have used; ties go by least recent use."""

    name = "lfu"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self.params = params

    def rank(self, leaf: Leaf) -> Rank:
        return leaf.uses, leaf.access
