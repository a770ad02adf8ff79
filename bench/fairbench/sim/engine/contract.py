"""The engine contract: what a run asks of the engine that its workers are."""

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
        """The most prompt tokens that an iteration computes of one request."""
        ...

    @property
    def mem_fraction_static(self) -> float | None:
        """What the pool was computed from; None where its size was given."""
        ...

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        """The settings that make the pool this large, or as small as it can be."""
        ...

    def worker(self, parts: WorkerParts) -> Replica:
        """A worker with an empty cache."""
        ...
