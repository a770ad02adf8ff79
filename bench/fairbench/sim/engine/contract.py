"""The engine contract: the interface of an engine whose workers a run simulates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.named import imported
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


# Paths, not classes, so that a run imports only its own engine.
CONTRACTS: Mapping[str, str] = {
    DEFAULT_ENGINE: "fairbench.sim.engine.sglang.contract:SGLangContract",
    "vllm": "fairbench.sim.engine.vllm.contract:VLLMContract",
    "lightllm": "fairbench.sim.engine.lightllm.contract:LightLLMContract",
}


def contract_of(
    engine: str | None, settings: Mapping[str, Any], profile: TimingProfile
) -> EngineContract:
    """Return the contract of ``engine`` (None: the default) with ``settings`` on a GPU."""
    contract: EngineContract = imported(CONTRACTS[engine or DEFAULT_ENGINE])(settings, profile)
    return contract
