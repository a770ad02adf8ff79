"""LRU eviction: the order of every engine's default."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.eviction.policy import EvictionPolicy


class LRU(EvictionPolicy):
    """A policy that drops the least recently used leaf, regardless of its clients."""

    name = "lru"

    @dataclass(frozen=True)
    class Params:
        """LRU has no parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params
