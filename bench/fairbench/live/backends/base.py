"""The backend: what each kind has to say before and while it serves a live run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from fairbench.config import ExperimentSpec
from fairbench.config.backend import BackendConfig
from fairbench.live.driver.target import Target
from fairbench.live.launchers.base import Launcher, Wanted
from fairbench.live.launchers.local import LocalLauncher
from fairbench.live.model_files import vocab_size_of
from fairbench.live.plugins.report import fetch_report, require_active
from fairbench.live.processes.http import get_json
from fairbench.live.processes.place import Place
from fairbench.live.processes.start import Recipe, Server
from fairbench.live.sent_names import sent_weights

C = TypeVar("C", bound=BackendConfig)

FIRST_TOKEN = 16  # below are special tokens in most vocabularies
COMMON_TOKENS = 32_000  # every common model has so many; larger ones have special tokens above


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What a live run must be told and its records do not depend on: stored nowhere.

    ``server_python`` is the Python that has SGLang, None the default. ``headers`` go with every
    request to an endpoint; they may hold secrets. ``launcher`` says where workers are started,
    ``drivers`` by how many processes the load is sent, ``driver_launcher`` where those are: None
    for this machine.
    """

    server_python: str | None = None
    ready_timeout_s: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)
    launcher: Launcher = field(default_factory=LocalLauncher)
    drivers: int = 1
    driver_launcher: Launcher | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What served a run. Sizes are None where they are not known.

    ``name`` is how tables call it. ``timing_profile`` and its grade are those of emulated servers.
    ``workers`` is as how many it counts, None if as many as the experiment has. ``unbounded`` is
    why no theorem can hold for how it schedules, "" if one may. ``hosts`` are the machines of
    its workers by number, none where all are on this one.
    """

    backend: str
    name: str = ""
    emulated: bool = False
    workers: int | None = None
    unbounded: str = ""
    pool_tokens: int | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    timing_profile: str | None = None
    timing_grade: str | None = None
    hosts: tuple[str, ...] = ()


class LiveBackend(ABC, Generic[C]):
    """One kind of backend, for one experiment whose ``backend`` is ``config``.

    Workers of the defaults speak SGLang's HTTP and schedule by a scheduler of ours.
    """

    def __init__(self, spec: ExperimentSpec, config: C) -> None:
        self.spec = spec
        self.config = config

    @property
    def running_at(self) -> str | None:
        """The URL of a server that runs already; None if workers are started, and a router."""
        return None

    @abstractmethod
    def wanted(self, options: LiveOptions) -> Wanted:
        """What its workers need of where they run; of no replicas where a server runs already.

        Raises UsageError for what no worker may be told.
        """

    def recipes(self, places: Sequence[Place]) -> list[Recipe]:
        """How to start its workers, one at each place; none where a server runs already."""
        return []

    @abstractmethod
    def served(self, info: Mapping[str, Any]) -> Served:
        """What serves the run, by the first worker's ``/server_info`` ({} without workers)."""

    @abstractmethod
    def target(self, url: str, options: LiveOptions) -> Target:
        """How the driver asks; ``url`` is the router's, or the one that it serves at itself."""

    flush_page: ClassVar[str] = "/flush_cache"
    """Where workers are told to empty their caches and begin afresh."""

    def info(self, url: str) -> dict[str, Any]:
        """What the worker there says about itself. Raises RunFailed if it does not answer."""
        return get_json(f"{url}/server_info")

    def verify(self, url: str) -> None:
        """Raise RunFailed unless the worker there schedules as the experiment has it."""
        spec = self.spec
        require_active(
            fetch_report(url), local=spec.local, settings=spec.settings, weights=sent_weights(spec)
        )

    def remarks(self, workers: Sequence[Server]) -> dict[str, str]:
        """What its workers know at the end of a run that a reader must, as notes by key."""
        return {}

    def vocabulary(self) -> range:
        """The token ids that prompts may be made of."""
        return vocabulary(self.spec.model)

    def needs(self) -> dict[str, Any]:
        """All of the experiment that its workers depend on: who needs the same can share them."""
        spec = self.spec
        return {
            "backend": self.config,
            "model": spec.model,
            "gpu": spec.gpu,
            "dp": spec.dp,
            "local": spec.local,
            "settings": worker_settings(spec),
            "weights": sent_weights(spec),
        }


def worker_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """The settings that concern workers: the engine's and the local scheduler's."""
    owners = ("engine.", f"{spec.local}.")
    return {key: value for key, value in spec.settings.items() if key.startswith(owners)}


def vocabulary(model: str) -> range:
    """Ids of ordinary tokens: ``vocab_size`` of the model's ``config.json`` if it is at hand."""
    return range(FIRST_TOKEN, min(vocab_size_of(model) or COMMON_TOKENS, COMMON_TOKENS))


class WorkerBackend(LiveBackend[C]):
    """A backend whose workers are started."""

    @abstractmethod
    def recipe(self, number: int, place: Place) -> Recipe:
        """How to start one of its workers there."""

    def recipes(self, places: Sequence[Place]) -> list[Recipe]:
        """How to start all of them, one at each place."""
        return [self.recipe(number, place) for number, place in enumerate(places)]
