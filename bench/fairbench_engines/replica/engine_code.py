"""Simulated replicas that run an installed engine's own scheduling code."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import sortedcontainers

from fairbench.core import NoBound, ServiceBound
from fairbench.engine.contract import CodeRun, Replica, WorkerParts
from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.registry import user_files
from fairbench_engines.replica import sglang, vllm
from fairbench_engines.replica.process import DOOR, Channel, EngineProcess
from fairbench_engines.replica.remote import RemoteReplica
from fairbench_engines.sglang.release import EVICTING
from fairbench_engines.sglang.release import SUPPORTED as SGLANG_RELEASES
from fairbench_engines.vllm.release import SUPPORTED as VLLM_RELEASES
from fairbench_load.plugin_config import Evicting, plugin_config


class OwnPolicy(FCFS):
    """A placeholder in the simulator for the scheduler that runs in the engine's own code.

    From an ``OwnPolicy``, the simulator reads only the name and the bound on service differences.
    ``inside`` is the scheduler of fairbench that decides inside the engine, or None if the engine's
    own policy decides.
    """

    def __init__(self, name: str, inside: LocalScheduler | None = None) -> None:
        super().__init__(NoParams())
        vars(self)["name"] = name
        self._inside = inside

    def service_bound(self) -> ServiceBound | NoBound:
        return super().service_bound() if self._inside is None else self._inside.service_bound()


FAIRBENCH = "fairbench"
# Packages that fairbench's plugin needs in an engine's Python, as arguments of
# ``inside.packages.provide``. ``PACKAGES`` omits pydantic, because every engine installs pydantic.
PACKAGES = {
    "own": {name: str(DOOR.parent) for name in (FAIRBENCH, "fairbench_rivals")},
    "missing": {"sortedcontainers": str(Path(sortedcontainers.__file__).parents[1])},
}


def plugin_of(
    scheduler: LocalScheduler, settings: Mapping[str, Any], eviction: str | None
) -> dict[str, Any]:
    """Return the configuration of a fairbench scheduler, in the form that ``inside.plugin`` reads.

    ``eviction`` is an eviction policy of fairbench, or None if the engine's own code evicts. In the
    result, ``path`` is the scheduler's class as ``MODULE:CLASS``, or empty for a class outside
    fairbench's packages. If ``path`` is empty, the engine's Python finds the class in one of the
    ``files`` of FAIRBENCH_SCHEDULERS or in an installed package. Raises UsageError if a client's
    name does not begin with the client's owner.
    """
    if scheduler.setup.tenant_paths:
        raise UsageError(
            f"local = {scheduler.name!r}: with engine_code, a client that has an owner must "
            "be named OWNER/CLIENT, because the engine does not receive client_owners"
        )
    setup = scheduler.setup
    evicting = Evicting(eviction, tuple(setup.clients))
    config = plugin_config(scheduler.name, settings, dict(setup.weights), evicting)
    kind = type(scheduler)
    is_packaged = kind.__module__.partition(".")[0] in PACKAGES["own"]
    return {
        "local": config.local,
        "params": config.params,
        "weights": config.weights,
        "eviction": config.eviction,
        "clients": config.clients,
        "path": f"{kind.__module__}:{kind.__qualname__}" if is_packaged else "",
        "files": [str(path) for path in user_files()],
    }


class OwnCode(ABC):
    """An engine's own code in a simulated run; the owner must call ``close`` after the run.

    ``run`` gives the engine's Python interpreter and scheduling policy.
    """

    engine: ClassVar[str]
    releases: ClassVar[Sequence[str]]
    evicting: ClassVar[Sequence[str]]  # releases in which fairbench's eviction policies work

    def __init__(self, run: CodeRun) -> None:
        self._run, self._policy, self._settings = run, run.policy, run.settings
        self._is_open = self._runs_ours = False
        self._key = (run.python, self.engine)
        idle = self._key in IDLE
        self._process = IDLE.pop(self._key) if idle else self._new_process()
        try:
            source = self._process.source()
            if not source["is_loaded"]:
                self._process.close()
                self._process = self._new_process()
                source = self._process.source()
            self._process.ask("begin")
        except BaseException:
            self._process.close()
            raise
        self.about: dict[str, Any] = {**_about(self.engine, source), "policy": run.policy}
        if run.charges_pass:
            self.about["charges_pass"] = True

    @classmethod
    def installed(cls, python: str) -> dict[str, Any]:
        """Return the version and digest of an installed engine, without importing the engine.

        The result has the keys of ``about`` except "policy". Raises UsageError if the engine is not
        installed for the Python interpreter ``python``.
        """
        process = EngineProcess(python, cls.engine, cls.releases, only_source=True)
        try:
            source = process.source()
        finally:
            process.close()
        return _about(cls.engine, source)

    def _new_process(self) -> EngineProcess:
        return EngineProcess(self._key[0], self.engine, self.releases)

    def worker(self, parts: WorkerParts) -> Replica:
        """Return a replica in which the engine's code schedules requests."""
        if not self._is_open:
            self._open(parts)
        channel = self._process.add(tells_evicted=parts.on_evict is not None)
        policy = OwnPolicy(f"{self._policy} of {self.engine}")
        if self._runs_ours:
            policy = OwnPolicy(self._policy, parts.scheduler)
        made = self._replica(replace(parts, scheduler=policy), channel)
        made.tags_clients = self._runs_ours
        made.charges_pass = self._run.charges_pass
        return made

    def _open(self, parts: WorkerParts) -> None:
        """Send the run's settings to the engine's process.

        Raises UsageError if the engine's release does not support fairbench's eviction policies.
        """
        eviction, version = self._run.our_eviction, self._process.version
        if eviction and version.partition("+")[0] not in self.evicting:
            raise UsageError(
                f"eviction = {eviction!r}: not supported in {self.engine} {version}; the engine "
                f"must be {' or '.join(self.evicting)}"
            )
        told = {**self._opening(parts), "policy": self._policy, "seed": self._run.seed}
        told["charge_pass"] = self._run.charges_pass
        told |= {"release": version, "packages": PACKAGES, "plugin": None}
        if parts.scheduler.name == self._policy:
            told["plugin"] = plugin_of(parts.scheduler, self._settings, eviction)
        self._runs_ours = bool(self._process.ask("open", told))
        if eviction and not self._runs_ours:
            raise UsageError(
                f"eviction = {eviction!r}: needs a scheduler of fairbench, but with engine_code, "
                f"{self._policy!r} is a policy of {self.engine}; give another scheduler"
            )
        self.about["policy_of"] = FAIRBENCH if self._runs_ours else self.engine
        self._is_open = True

    @abstractmethod
    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        """Return the engine's limits and settings, in the form that the engine's bridge reads."""

    @abstractmethod
    def _replica(self, parts: WorkerParts, channel: Channel) -> RemoteReplica:
        """Return a replica without cached tokens; ``channel`` connects to the replica's process."""

    def close(self) -> None:
        """End the run, and keep an idle process for the next run with this Python and engine."""
        process = self._process
        if process.is_ready:
            with suppress(RunFailed):
                process.end()
        if process.is_ready and self._key not in IDLE:
            IDLE[self._key] = process
            return
        process.close()


def _about(engine: str, source: Mapping[str, Any]) -> dict[str, Any]:
    return {"engine": engine, **{k: v for k, v in source.items() if k != "is_loaded"}}


# idle processes by (Python interpreter, engine); importing an engine again would take seconds
IDLE: dict[tuple[str, str], EngineProcess] = {}


@atexit.register
def end_idle() -> None:
    """End all idle processes."""
    while IDLE:
        IDLE.popitem()[1].close()


class SGLangCode(OwnCode):
    """The scheduling code of an installed SGLang, used in a simulated run."""

    engine = "sglang"
    releases, evicting = SGLANG_RELEASES, EVICTING

    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        return sglang.opening(self._settings, parts, self._policy, self._run.eviction)

    def _replica(self, parts: WorkerParts, channel: Channel) -> RemoteReplica:
        return sglang.SGLangCodeReplica(parts, self._settings, channel)


class VLLMCode(OwnCode):
    """The scheduling code of an installed vLLM, used in a simulated run."""

    engine = "vllm"
    releases = evicting = VLLM_RELEASES

    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        return vllm.opening(self._settings, parts)

    def _replica(self, parts: WorkerParts, channel: Channel) -> RemoteReplica:
        return vllm.VLLMCodeReplica(parts, self._settings, channel)
