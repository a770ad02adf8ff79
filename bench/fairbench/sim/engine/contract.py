"""The engine contract: the interface of an engine, and of the replicas that a run simulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from fairbench.core import Prompt
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.named import by_path
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.eviction.policy import EvictionPolicy
from fairbench.sim.clock import Clock
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.records.memory_log import WorkerMemoryLog
from fairbench.sim.records.service_log import ServiceLog
from fairbench.sim.sequence import Sequence


class KVMemory(Protocol):
    """A worker's KV memory, in tokens."""

    @property
    def capacity(self) -> int: ...

    @property
    def free(self) -> int:
        """The free memory in tokens, without cached tokens."""

    @property
    def evictable(self) -> int:
        """Return the cached and unused tokens."""

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return the cached length of a prompt, at most ``limit``, without changing anything."""

    def abandon(self) -> None:
        """Drop the cache at the end, because linked nodes are slow to collect."""


class Replica(Protocol):
    """A worker. Pass requests to ``submit``; each request's ``on_done`` is called at its end.

    ``on_pass`` is called after every decision on the next step.
    """

    scheduler: LocalScheduler
    batch: RunningBatch
    on_pass: Callable[[], None] | None

    @property
    def cache(self) -> KVMemory: ...

    @property
    def queued_count(self) -> int:
        """The number of requests that have arrived and do not run."""

    @property
    def running_count(self) -> int:
        """Return the number of prefilling and running requests."""

    @property
    def saturated(self) -> bool:
        """Return whether requests wait and none is considered until a running one ends."""

    def submit(self, sequence: Sequence) -> None:
        """Take in a request that arrives."""

    def sync(self) -> None:
        """Bring counters up to date."""

    def settle(self) -> None:
        """Call ``sync`` for the last time, and write the remaining records."""

    def in_flight(self) -> list[Sequence]:
        """All waiting, prefilling and running requests, in order of arrival."""


class ManagedMemory(NamedTuple):
    """The eviction policy of one worker's KV memory, and the log of clients' tokens."""

    policy: EvictionPolicy
    log: WorkerMemoryLog


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts of a worker. ``on_evict`` is for a router that uses eviction reports.

    ``memory`` is None for the engine's own eviction order without a log.
    """

    index: int
    clock: Clock
    scheduler: LocalScheduler
    profile: TimingProfile
    log: ServiceLog
    on_evict: Callable[[Prompt, int], None] | None = None
    memory: ManagedMemory | None = None


WorkerOf: TypeAlias = Callable[[WorkerParts], Replica]


class EngineContract(Protocol):
    """An engine with its settings, on one GPU and model.

    Contracts are created from settings and a profile.
    """

    pool_tokens: int  # tokens of a worker's KV memory
    most_running: int  # the largest number of requests that a worker runs at a time
    chunk_tokens: int  # the largest number of prompt tokens of a request in one iteration
    # the fraction from which the pool was computed; None if the pool was given
    mem_fraction_static: float | None

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        """Return the settings for a pool of ``tokens`` tokens, or the smallest possible pool."""

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a worker with an empty cache."""


CONTRACTS: Mapping[str, Callable[[Mapping[str, Any], TimingProfile], EngineContract]] = by_path(
    {
        DEFAULT_ENGINE: "fairbench.sim.engine.sglang.contract:SGLangContract",
        "vllm": "fairbench.sim.engine.vllm.contract:VLLMContract",
        "lightllm": "fairbench.sim.engine.lightllm.worker:LightLLMContract",
    }
)
"""The contract of each engine, made from settings and a timing profile."""
