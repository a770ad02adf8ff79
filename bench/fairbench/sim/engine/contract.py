"""The engine contract: the interface of an engine whose workers a run simulates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fairbench.sim.engine.replica import Replica, WorkerParts


class EngineContract(Protocol):
    """An engine with its settings, on one GPU and model. Made from settings and a profile."""

    @property
    def pool_tokens(self) -> int:
        """KV memory of a worker."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """The largest number of prompt tokens of a request in one iteration."""
        ...

    @property
    def mem_fraction_static(self) -> float | None:
        """The fraction from which the pool was computed; None if the size was given."""
        ...

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        """Return the settings for a pool of ``tokens`` tokens, or the smallest possible pool."""
        ...

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a worker with an empty cache."""
        ...
