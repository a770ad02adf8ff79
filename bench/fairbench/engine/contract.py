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
        """The number of free tokens; cached tokens do not count."""

    @property
    def evictable(self) -> int:
        """The number of cached tokens that no running request uses."""

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return how many tokens of a prompt are cached, at most ``limit``; change no state."""

    def abandon(self) -> None:
        """Remove all nodes at the end of a run, because Python frees linked nodes slowly."""


class Replica(Protocol):
    """A simulated worker.

    ``submit`` adds a request together with a function ``on_done``, called when the request ends.
    ``on_pass`` is called each time the worker has decided on its next step.
    """

    scheduler: LocalScheduler
    batch: RunningBatch
    on_pass: Callable[[], None] | None

    @property
    def cache(self) -> KVMemory: ...

    @property
    def queued_count(self) -> int:
        """The number of requests that have arrived and are not running."""

    @property
    def running_count(self) -> int:
        """The number of requests in prefill or decoding."""

    @property
    def saturated(self) -> bool:
        """Whether requests wait and none of them can be admitted before a running request ends."""

    @property
    def room(self) -> Room | None:
        """The ``Room`` (free capacity) of the next scheduling pass, or None if unknown.

        Precondition: ``sync`` was called.
        """

    def submit(self, sequence: Sequence) -> None:
        """Add a request that arrives at the worker."""

    def sync(self) -> None:
        """Record all decode steps that have ended up to now."""

    def settle(self) -> None:
        """Call ``sync`` a last time, and write all records that are still missing."""

    def in_flight(self) -> list[Sequence]:
        """Return all requests at the worker: waiting, in prefill, and decoding."""


class ManagedMemory(NamedTuple):
    """The eviction policy of one worker's KV memory, and the log of the clients' tokens.

    If ``shares`` is set, a ``MemoryShare`` decides which waiting requests may be admitted.
    """

    policy: EvictionPolicy
    log: WorkerMemoryLog
    shares: bool = False


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts from which a simulated worker is built.

    ``on_evict`` is called at each eviction if the router uses reports of evictions. ``memory`` is
    None if the engine evicts in its own order and no log of clients' tokens is kept.
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
    """A simulated run in which the code of an installed engine decides.

    ``python`` is the Python interpreter in which the engine is installed, and ``policy`` is the
    engine's scheduling policy. ``eviction`` is the engine's eviction policy, or None for the
    engine's default. ``our_eviction`` is an eviction policy of fairbench that runs inside the
    engine in place of the engine's own policy, or None. With ``charges_pass``, the measured time of
    a scheduling pass delays the iteration that the pass decides on.
    """

    python: str
    policy: str
    settings: Mapping[str, Any]
    seed: int
    eviction: str | None = None
    our_eviction: str | None = None
    charges_pass: bool = False


class EngineCode(Protocol):
    """An installed engine whose own code makes the decisions of a run's simulated replicas.

    A class is registered under the engine's name by an entry point of the group
    ``doors.CODE_GROUP``. It is called with a ``CodeRun`` as its argument.
    """

    # ``about`` describes the engine: its version, digest, commit and changed files, and the policy
    # with its owner.
    about: dict[str, Any]

    @classmethod
    def installed(cls, python: str) -> dict[str, Any]:
        """Return which engine code a Python interpreter has installed, in the form of ``about``."""

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a replica with an empty cache."""

    def close(self) -> None:
        """End the process that runs the engine's code."""


class EngineContract(Protocol):
    """The parameters of a simulated engine on one GPU and model.

    A contract is created from settings and a timing profile.
    """

    # ``pool_tokens`` is the size of a worker's KV memory in tokens.
    pool_tokens: int
    # ``most_running`` is the largest number of requests that a worker runs at once.
    most_running: int
    # ``chunk_tokens`` is the largest number of prompt tokens in one iteration.
    chunk_tokens: int
    # If ``mixed_steps`` is true, an iteration may compute prompts and decode together.
    mixed_steps: bool
    # ``mem_fraction_static`` is the fraction of GPU memory from which the size of the KV pool was
    # computed, or None if the user gave the size in tokens.
    mem_fraction_static: float | None

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        """Return the settings for a pool of ``tokens`` tokens, or else the smallest valid pool."""

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a new worker with an empty cache."""


CONTRACTS: Mapping[str, Callable[[Mapping[str, Any], TimingProfile], EngineContract]] = by_path(
    {
        DEFAULT_ENGINE: "fairbench.engine.sglang_variants:SGLangContract",
        "vllm": "fairbench.engine.vllm:VLLMContract",
        "lightllm": "fairbench.engine.lightllm:LightLLMContract",
    }
)
"""The class of each engine's contract, by the name of the engine.

Called with settings and a timing profile, the class returns an ``EngineContract``: the parameters
of the simulated engine on one GPU and model.
"""
