"""LFU eviction, the other order of SGLang's radix cache."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.eviction.policy import EvictionPolicy, Leaf, Rank


class LFU(EvictionPolicy):
    """A policy that drops the leaf used by the fewest requests; ties: least recently used."""

    name = "lfu"

    @dataclass(frozen=True)
    class Params:
        """LFU has no parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def rank(self, leaf: Leaf) -> Rank:
        return leaf.uses, leaf.access
