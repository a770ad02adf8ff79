"""The interface of backends: the methods of each kind of backend in a live run.

In live runs and in simulations, a client with an owner (``client_owners``) is called
``owner/client``, a path in the tree of tenants. A header names the client's objective, a set of
latency targets that the router knows (the same header as in llm-d).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from fairbench.config import ExperimentSpec
from fairbench.config.flags import READY_S
from fairbench.errors import UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.schedulers.eviction.registry import SHARE
from fairbench.schedulers.params import own_settings
from fairbench.tenants import named_below
from fairbench.workloads.plan import program_stream
from fairbench_load.driver.target import DriverTarget
from fairbench_load.kinds import LoadedBackend, RealServers
from fairbench_load.launchers import Launcher, LocalLauncher, Wanted
from fairbench_load.plugin_config import (
    LOCAL,
    Evicting,
    PluginConfig,
    plugin_config,
    untested_environment,
)
from fairbench_load.processes.environment import ServerPython
from fairbench_load.processes.process import ReplicaPlace
from fairbench_load.processes.servers import Recipe, Server
from fairbench_load.server_facts import fetch_report, get_json, require_active, vocab_size_of


def sent_names(spec: ExperimentSpec) -> Mapping[str, str]:
    """Map each client that has an owner to its name in requests (``owner/client``)."""
    owners = spec.workload.client_owners or {}
    clients = spec.workload.name_clients(spec.clients)
    sent = named_below({client: owners.get(client, "") for client in clients})
    return {client: name for client, name in sent.items() if name != client}


def sent_weights(spec: ExperimentSpec) -> dict[str, float]:
    """Return the weights of clients and tenants, by their names in HTTP requests."""
    names = sent_names(spec)
    return {names.get(one, one): weight for one, weight in (spec.weights or {}).items()}


def objectives(spec: ExperimentSpec) -> Mapping[str, str]:
    """Return the name of the objective (a set of latency targets) of each client that has one."""
    return {client: name for client, name, _ in _latency_targets(spec)}


def time_scale_of(spec: ExperimentSpec) -> float:
    """Return how many emulated seconds pass in a real second."""
    return float(getattr(spec.backend, "time_scale", 1.0))


def objective_flags(spec: ExperimentSpec) -> list[str]:
    """Return ``fairbench serve`` flags that set latency objectives, in milliseconds of real time.

    Targets relative to a program's latency on an idle server are left out, because the router does
    not know this latency.
    """
    flags, time_scale = [], time_scale_of(spec)
    for _, name, times_s in _latency_targets(spec):
        for latency, time_s in times_s.items():
            flags += ["--goodput", f"{name}.{latency}:{time_s / time_scale * 1000:.12g}ms"]
    return flags


def _latency_targets(spec: ExperimentSpec) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    for number, plan in enumerate(spec.client_plans()):
        given = plan.targets.given()
        times_s = {latency: one.amount for latency, one in given if not one.of_alone}
        if times_s:
            yield plan.client, f"client-{number}", times_s


C = TypeVar("C", bound=LoadedBackend)

FIRST_TOKEN = 16  # Lower token ids are special tokens in most vocabularies.
LOOKED_AT = 16  # maximum number of clients whose first program's length is checked
# The vocabulary of every common model has at least 32,000 ordinary tokens.
COMMON_TOKENS = 32_000


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a live run that affect no records and are not stored.

    - ``server_python`` is the path of the Python in which the engine is installed; None means the
      default Python.
    - ``ready_timeout_s`` is the longest time, in seconds, that servers may take to start.
    - ``headers`` are sent with each request to an endpoint, and may hold secrets.
    - ``launcher`` decides on which machines workers start.
    - ``drivers`` is the number of processes that send the load.
    - ``driver_launcher`` decides on which machines drivers start; None means this machine.
    """

    server_python: str | None = None
    ready_timeout_s: float = READY_S
    headers: Mapping[str, str] = field(default_factory=dict)
    launcher: Launcher = field(default_factory=LocalLauncher)
    drivers: int = 1
    driver_launcher: Launcher | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A description of a run's servers, in which None means that a value is unknown.

    - ``name`` is the server's name in tables.
    - ``pool_flag`` is the server's flag that sets the size of the KV memory, or "".
    - ``timing_profile`` and ``timing_grade`` describe emulated servers only.
    - ``workers`` is the number of workers on which metrics are based; None means the experiment's
      number of workers.
    - ``unbounded`` is the reason why no theorem bounds the service differences between clients.
    - ``hosts`` are the machines of the workers; () means that all workers are on this machine.
    - ``async_scheduling`` is True if the engine schedules a step while the previous step runs
      (SGLang's overlap schedule, vLLM's asynchronous scheduling).
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
    """The base class of backends; ``spec`` is the experiment, and ``config`` its backend settings.

    By default, workers have SGLang's HTTP API and run a scheduler of fairbench.
    """

    def __init__(self, spec: ExperimentSpec, config: C) -> None:
        self.spec = spec
        self.config = config

    @property
    def running_at(self) -> str | None:
        """The URL of a server that the user started; None means that fairbench starts servers."""
        return None

    @abstractmethod
    def wanted(self, options: LiveOptions) -> Wanted:
        """Return the number of workers, and the GPUs and Python interpreter that each worker needs.

        If the user started the server, the number of workers is 0. Raises UsageError for options
        that this kind of worker does not support.
        """

    def recipes(self, places: Sequence[ReplicaPlace]) -> list[Recipe]:
        """Return the instructions for starting a worker on each of ``places`` (machine and GPUs).

        The list is empty if the user starts the workers.
        """
        return []

    @abstractmethod
    def served(self, info: Mapping[str, Any]) -> Served:
        """Describe the server; ``info`` is the ``/server_info`` of the first worker, or {}."""

    @abstractmethod
    def target(self, url: str, options: LiveOptions) -> DriverTarget:
        """Return the driver's target, which has the ``url`` of the router or server."""

    flush_page: ClassVar[str] = "/flush_cache"
    """The HTTP path that makes workers empty their caches and reset their schedulers."""

    def info(self, url: str) -> dict[str, Any]:
        """Return the settings that a worker reports about itself.

        Raises RunFailed if the worker does not answer.
        """
        return get_json(f"{url}/server_info")

    def verify(self, url: str) -> None:
        """Raise RunFailed unless the worker runs the local scheduler of the experiment."""
        require_active(fetch_report(url), self.plugin)

    @property
    def plugin(self) -> PluginConfig:
        """The configuration of fairbench's plugin in each worker."""
        spec = self.spec
        return plugin_config(
            spec.local, sent_settings(spec), sent_weights(spec), sent_evicting(spec)
        )

    def remarks(self, workers: Sequence[Server]) -> dict[str, str]:
        """Return notes about the workers, as a mapping that is stored with the run's result."""
        return {}

    def vocabulary(self) -> range:
        """Return the token ids from which random prompts are drawn."""
        return vocabulary(self.spec.model)

    def needs(self) -> dict[str, Any]:
        """Return all settings of the workers; experiments with equal settings can share workers."""
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
            "shares": bool(spec.settings.get(SHARE)),
        }


def worker_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the workers' settings: settings of the engine and of the local scheduler."""
    owners = ("engine.", f"{spec.local}.")
    return {key: value for key, value in spec.settings.items() if key.startswith(owners)}


def vocabulary(model: str) -> range:
    """Return the ids of ordinary tokens, limited by the model's ``vocab_size`` if known."""
    return range(FIRST_TOKEN, min(vocab_size_of(model) or COMMON_TOKENS, COMMON_TOKENS))


def too_small(spec: ExperimentSpec, pool_tokens: int | None) -> str:
    """Return "" if a client's prompts fit into the KV memory, and otherwise an error message."""
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
    """A backend that starts its own workers."""

    @abstractmethod
    def recipe(self, number: int, place: ReplicaPlace) -> Recipe:
        """Return how to start worker ``number`` on the machine and GPUs of ``place``."""

    def recipes(self, places: Sequence[ReplicaPlace]) -> list[Recipe]:
        return [self.recipe(number, place) for number, place in enumerate(places)]


def sent_evicting(spec: ExperimentSpec) -> Evicting:
    """Return the run's eviction policy, with client names as they appear in requests."""
    names = sent_names(spec)
    clients = spec.workload.name_clients(spec.clients)
    return Evicting(spec.eviction, tuple(names.get(one, one) for one in clients))


def sent_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the run's settings; memory quotas use the client names that requests contain."""
    names, quotas = sent_names(spec), f"{spec.eviction}.percent"
    settings = dict(spec.settings)
    if names and quotas in settings:
        settings[quotas] = {names.get(one, one): of for one, of in settings[quotas].items()}
    return settings


POOL = "engine.max_total_tokens"

R = TypeVar("R", bound=RealServers)


class RealServerBackend(WorkerBackend[R]):
    """Servers of a real engine, with fairbench's plugin or with the engine's own policy."""

    def target(self, url: str, options: LiveOptions) -> DriverTarget:
        return DriverTarget(
            url,
            api=self.config.api,
            model=self.spec.model,
            max_concurrency=self.config.max_concurrency,
        )

    def _name(self, info: Mapping[str, Any]) -> str:
        config = self.config
        own = f" with its own {config.schedule_policy}" if config.schedule_policy else ""
        return f"{config.kind} {info.get('version', '?')}{own}, {self.spec.model}"

    def _plugin(self) -> dict[str, str]:
        if self.config.schedule_policy is not None:
            # An empty ``LOCAL`` in the server's environment overrides an inherited value.
            return {LOCAL: ""}
        return self.plugin.environment() | untested_environment()

    def _engine_flags(self, flags: Mapping[str, str]) -> list[str]:
        engine, default = own_settings("engine", self.spec.settings), EngineParams()
        return [
            text
            for name, flag in flags.items()
            if (value := engine.get(name)) not in (None, getattr(default, name))
            for text in (flag, str(value))
        ]

    def _stock(self, python: ServerPython, policy: str) -> ServerPython:
        return replace(python, plugin="")

    def _wanted(self, python: ServerPython, options: LiveOptions, *, on_cpu: bool) -> Wanted:
        config, model = self.config, self.spec.model
        here = isinstance(options.launcher, LocalLauncher)
        if here and model.startswith(("/", ".")) and not Path(model).exists():
            raise UsageError(
                f"model = {model!r}: there is no such folder; give an existing folder, or a "
                "name on the Hugging Face hub"
            )
        given = self.spec.settings.get(POOL)
        if given and (reason := too_small(self.spec, given)):
            raise UsageError(f"{POOL} = {given}: {reason}")
        if config.schedule_policy is not None:
            python = self._stock(python, config.schedule_policy)
        return Wanted(
            self.spec.dp,
            python,
            options.server_python,
            gpus=0 if on_cpu else config.tp,
            share_gpus=config.share_gpus,
        )
