"""The backend interface: what each kind of backend provides before and during a live run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from fairbench.config import ExperimentSpec
from fairbench.config.backend import BackendConfig
from fairbench.config.flags.run import READY_S
from fairbench.live.driver.target import Target
from fairbench.live.launchers.base import Launcher, LocalLauncher, Wanted
from fairbench.live.plugin_config import (
    Evicting,
    PluginConfig,
    fetch_report,
    plugin_config,
    require_active,
)
from fairbench.live.processes.http import get_json
from fairbench.live.processes.process import Place
from fairbench.live.processes.servers import Recipe, Server
from fairbench.live.sent_names import sent_names, sent_weights
from fairbench.live.server_facts import vocab_size_of
from fairbench.workloads.plan import program_stream

C = TypeVar("C", bound=BackendConfig)

FIRST_TOKEN = 16  # lower ids are special tokens in most vocabularies
LOOKED_AT = 16  # clients whose first program is examined
COMMON_TOKENS = 32_000  # every common model has these; larger ones have special tokens above


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a live run that do not affect its records and are stored nowhere.

    - ``server_python`` is the Python that has SGLang, or None for the default.
    - ``headers`` are sent with every request to an endpoint and may hold secrets.
    - ``launcher`` decides where workers start.
    - ``drivers`` is the number of processes that send the load.
    - ``driver_launcher`` decides where drivers start, or None for this machine.
    """

    server_python: str | None = None
    ready_timeout_s: float = READY_S
    headers: Mapping[str, str] = field(default_factory=dict)
    launcher: Launcher = field(default_factory=LocalLauncher)
    drivers: int = 1
    driver_launcher: Launcher | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """The server of a run. Sizes are None if unknown.

    - ``name`` is the server's name in tables.
    - ``pool_flag`` is the server's flag that set its KV pool, if it is no flag of ours.
    - ``timing_profile`` and its grade belong to emulated servers.
    - ``workers`` is the number of workers for which it counts, or None for the experiment's number.
    - ``unbounded`` is the reason why no theorem bounds its scheduling, "" if a theorem may apply.
    - ``hosts`` are the machines of the workers by number, empty if all are on this machine.
    - ``async_scheduling`` is whether vLLM schedules asynchronously.
    """

    backend: str
    name: str = ""
    emulated: bool = False
    workers: int | None = None
    unbounded: str = ""
    pool_tokens: int | None = None
    mem_fraction_static: float | None = None
    pool_flag: str = ""
    chunked_prefill_size: int | None = None
    timing_profile: str | None = None
    timing_grade: str | None = None
    hosts: tuple[str, ...] = ()
    async_scheduling: bool | None = None


class LiveBackend(ABC, Generic[C]):
    """A kind of backend for one experiment, whose ``backend`` is ``config``.

    By default, workers speak SGLang's HTTP and use one of our schedulers.
    """

    def __init__(self, spec: ExperimentSpec, config: C) -> None:
        self.spec = spec
        self.config = config

    @property
    def running_at(self) -> str | None:
        """The URL of a running server; None if workers and a router are started."""
        return None

    @abstractmethod
    def wanted(self, options: LiveOptions) -> Wanted:
        """Return the workers' requirements; zero replicas if a server runs already.

        Raises UsageError for options that no worker supports.
        """

    def recipes(self, places: Sequence[Place]) -> list[Recipe]:
        """Return how to start the workers, one per place; none if a server runs already."""
        return []

    @abstractmethod
    def served(self, info: Mapping[str, Any]) -> Served:
        """Describe the run's server by the first worker's ``/server_info`` ({} without workers)."""

    @abstractmethod
    def target(self, url: str, options: LiveOptions) -> Target:
        """Return the target of the driver at ``url``, the router or the server itself."""

    flush_page: ClassVar[str] = "/flush_cache"
    """The path at which workers empty their caches and start afresh."""

    def info(self, url: str) -> dict[str, Any]:
        """Return the worker's description of itself. Raises RunFailed if it does not answer."""
        return get_json(f"{url}/server_info")

    def verify(self, url: str) -> None:
        """Raise RunFailed unless the worker at the URL schedules as the experiment says."""
        require_active(fetch_report(url), self.plugin)

    @property
    def plugin(self) -> PluginConfig:
        """The configuration of fairbench's plugin in the workers."""
        spec = self.spec
        return plugin_config(
            spec.local, sent_settings(spec), sent_weights(spec), sent_evicting(spec)
        )

    def remarks(self, workers: Sequence[Server]) -> dict[str, str]:
        """Return the workers' notes for the reader, by key, at the end of a run."""
        return {}

    def vocabulary(self) -> range:
        """Return the token ids from which prompts may be built."""
        return vocabulary(self.spec.model)

    def needs(self) -> dict[str, Any]:
        """Return all that the workers depend on; experiments with equal needs can share workers."""
        spec = self.spec
        return {
            "backend": self.config,
            "model": spec.model,
            "gpu": spec.gpu,
            "dp": spec.dp,
            "local": spec.local,
            "settings": worker_settings(spec),
            "weights": sent_weights(spec),
            "eviction": sent_evicting(spec),
        }


def worker_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the settings of the workers: the engine's and the local scheduler's."""
    owners = ("engine.", f"{spec.local}.")
    return {key: value for key, value in spec.settings.items() if key.startswith(owners)}


def vocabulary(model: str) -> range:
    """Return the ids of ordinary tokens, limited by the model's ``vocab_size`` if known."""
    return range(FIRST_TOKEN, min(vocab_size_of(model) or COMMON_TOKENS, COMMON_TOKENS))


def too_small(spec: ExperimentSpec, pool_tokens: int | None) -> str:
    """Return why a KV pool is too small for the workload, "" if it is large enough or unknown.

    A pool is too small if no client's mean first prompt fits into it.
    """
    prompts = []
    for plan in islice(spec.client_plans(), LOOKED_AT):
        for _, program in islice(program_stream(plan, seed=spec.seed), 1):
            prompts.append(program.demand.input_tokens / max(1, program.demand.requests))
    if pool_tokens is None or not prompts or pool_tokens > min(prompts):
        return ""
    return (
        f"a KV pool of {pool_tokens:,} tokens is too small: prompts of the workload "
        f"{spec.workload.name} have {min(prompts):,.0f} tokens and more"
    )


class WorkerBackend(LiveBackend[C]):
    """A backend whose workers are started."""

    @abstractmethod
    def recipe(self, number: int, place: Place) -> Recipe:
        """Return how to start worker ``number`` at a place."""

    def recipes(self, places: Sequence[Place]) -> list[Recipe]:
        return [self.recipe(number, place) for number, place in enumerate(places)]


def sent_evicting(spec: ExperimentSpec) -> Evicting:
    """Return the eviction policy and the clients that it tells apart."""
    names = sent_names(spec)
    clients = spec.workload.name_clients(spec.clients)
    return Evicting(spec.eviction, tuple(names.get(one, one) for one in clients))


def sent_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the settings of the run, with the clients of quotas by the names in requests."""
    names, quotas = sent_names(spec), f"{spec.eviction}.percent"
    settings = dict(spec.settings)
    if names and quotas in settings:
        settings[quotas] = {names.get(one, one): of for one, of in settings[quotas].items()}
    return settings
