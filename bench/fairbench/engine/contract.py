"""Interfaces that every simulated engine and its replicas implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from fairbench.core import Prompt
from fairbench.engine.batch import RunningBatch
from fairbench.engine.clock import Clock
from fairbench.engine.logs import ServiceLog, WorkerMemoryLog
from fairbench.engine.sequence import Sequence
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.named import by_path
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.eviction.policies import EvictionPolicy
from fairbench.schedulers.views import Room


class KVMemory(Protocol):
    """The KV memory of a worker, counted in tokens."""

    @property
    def capacity(self) -> int: ...

    @property
    def free(self) -> int:
        """The size of the free memory in tokens; memory of cached tokens does not count as free."""

    @property
    def evictable(self) -> int:
        """The number of cached tokens that no running request uses."""

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return a prompt's number of cached tokens, at most ``limit``, without side effects."""

    def abandon(self) -> None:
        """Remove all nodes at the end of a run, because Python frees linked nodes slowly."""


class Replica(Protocol):
    """A simulated worker.

    The replica calls ``on_pass`` each time it has decided on its next step.
    """

    scheduler: LocalScheduler
    batch: RunningBatch
    on_pass: Callable[[], None] | None

    @property
    def cache(self) -> KVMemory: ...

    @property
    def queued_count(self) -> int:
        """The number of requests at the worker that are not running."""

    @property
    def running_count(self) -> int:
        """The number of requests that are in prefill or decoding."""

    @property
    def saturated(self) -> bool:
        """Whether requests wait and cannot be admitted before a running request ends."""

    @property
    def room(self) -> Room | None:
        """The free capacity in the next scheduling pass, or None if unknown.

        Precondition: ``sync`` was called.
        """

    def submit(self, sequence: Sequence) -> None:
        """Add an arriving request to this worker."""

    def sync(self) -> None:
        """Record all decode steps that have ended."""

    def settle(self) -> None:
        """Call ``sync`` at the end of a run, and write all missing records."""

    def in_flight(self) -> list[Sequence]:
        """Return all requests at the worker: waiting, in prefill and decoding."""


class ManagedMemory(NamedTuple):
    """The eviction policy of a worker's KV memory, and the log of each client's tokens in it.

    If ``shares`` is set, admissions respect fair memory shares (``MemoryShare``).
    """

    policy: EvictionPolicy
    log: WorkerMemoryLog
    shares: bool = False


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The components of a simulated worker.

    ``on_evict`` reports evictions to a router that uses them. ``memory`` is None if the engine
    evicts in its own order, without a log of clients' tokens.
    """

    index: int
    clock: Clock
    scheduler: LocalScheduler
    profile: TimingProfile
    log: ServiceLog
    on_evict: Callable[[Prompt, int], None] | None = None
    memory: ManagedMemory | None = None


WorkerOf: TypeAlias = Callable[[WorkerParts], Replica]


class CodeRun(NamedTuple):
    """A simulated run in which an installed engine's code makes the decisions.

    ``python`` is the Python interpreter in which the engine is installed, and ``policy`` is its
    scheduling policy. ``eviction`` is the engine's own eviction policy, or None for the default.
    ``our_eviction`` is an eviction policy of fairbench that replaces the engine's policy, or None.
    With ``charges_pass``, the measured time of a scheduling pass delays the iteration that the pass
    decides on.
    """

    python: str
    policy: str
    settings: Mapping[str, Any]
    seed: int
    eviction: str | None = None
    our_eviction: str | None = None
    charges_pass: bool = False


class EngineCode(Protocol):
    """An installed engine whose code makes the decisions of simulated replicas.

    An entry point of the group ``doors.CODE_GROUP`` registers the class under the engine's name.
    The simulator creates an instance of the registered class with a ``CodeRun`` as its argument.
    """

    # ``about`` describes the engine: its version, digest, commit, changed files and policy.
    about: dict[str, Any]

    @classmethod
    def installed(cls, python: str) -> dict[str, Any]:
        """Return the version, digest and changed files of the engine in a Python installation."""

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a new replica of the engine, with an empty KV cache."""

    def close(self) -> None:
        """End the process that runs the engine's code."""


class EngineContract(Protocol):
    """The parameters of a simulated engine for a GPU and a model.

    An experiment's settings and a timing profile determine the parameters of an engine.
    """

    pool_tokens: int
    # ``most_running`` is the maximum number of requests that a worker runs at once.
    most_running: int
    # ``chunk_tokens`` is the maximum number of prompt tokens in an iteration.
    chunk_tokens: int
    # If ``mixed_steps`` is true, an iteration may both compute prompts and decode.
    mixed_steps: bool
    # ``mem_fraction_static`` is the fraction of GPU memory that determines the KV pool's size, or
    # None if the user set the size in tokens.
    mem_fraction_static: float | None

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        """Return settings for a KV pool of ``tokens`` tokens, or the smallest possible pool."""

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a new worker with an empty cache."""


CONTRACTS: Mapping[str, Callable[[Mapping[str, Any], TimingProfile], EngineContract]] = by_path(
    {
        DEFAULT_ENGINE: "fairbench.engine.sglang_variants:SGLangContract",
        "vllm": "fairbench.engine.vllm:VLLMContract",
        "lightllm": "fairbench.engine.lightllm:LightLLMContract",
    }
)
"""The ``EngineContract`` class of each engine, by the engine's name.

The constructor of each class takes an experiment's settings and a timing profile.
"""
