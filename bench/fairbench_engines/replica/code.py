"""An installed engine's own code as the replicas of a simulation."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from fairbench.engine.contract import Replica, WorkerParts
from fairbench.errors import RunFailed
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import NoParams
from fairbench_engines.replica import sglang, vllm
from fairbench_engines.replica.process import Channel, EngineProcess
from fairbench_engines.sglang.release import SUPPORTED as SGLANG_RELEASES
from fairbench_engines.vllm.release import SUPPORTED as VLLM_RELEASES


class OwnPolicy(FCFS):
    """The name of an engine's own policy, for reports; nobody asks the object for an order."""

    def __init__(self, name: str) -> None:
        super().__init__(NoParams())
        vars(self)["name"] = name


class OwnCode(ABC):
    """The code of an engine in one Python, for one run; ``close`` it after the run.

    Args:
        python: Python that has the engine, as ``--engine-code`` names it.
        policy: Name of the engine's scheduling policy.
        settings: Settings of the run, by NAME.PARAM.
        seed: Seed of the engine's random numbers.
    """

    engine: ClassVar[str]
    releases: ClassVar[Sequence[str]]

    def __init__(self, python: str, policy: str, settings: Mapping[str, Any], seed: int) -> None:
        self._policy, self._settings, self._seed = policy, settings, seed
        self._is_open = False
        self._key = (python, self.engine)
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
        self.about: dict[str, Any] = {**_about(self.engine, source), "policy": policy}

    @classmethod
    def installed(cls, python: str) -> dict[str, Any]:
        """Return which code a Python has now, as ``about`` without the policy.

        The engine is not imported. Raises UsageError if the Python lacks the engine.
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
        """Return a replica whose decisions the engine's code takes."""
        if not self._is_open:
            told = self._opening(parts)
            self._process.ask("open", {**told, "policy": self._policy, "seed": self._seed})
            self._is_open = True
        channel = self._process.add(tells_evicted=parts.on_evict is not None)
        policy = OwnPolicy(f"{self._policy} of {self.engine}")
        return self._replica(replace(parts, scheduler=policy), channel)

    @abstractmethod
    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        """Return the limits and the configuration of the engine, for its bridge."""

    @abstractmethod
    def _replica(self, parts: WorkerParts, channel: Channel) -> Replica:
        """Return a replica with an empty cache."""

    def close(self) -> None:
        """End the run. The process stays for the next run with this code, if none else waits."""
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


# Processes without a run. An engine takes many seconds to import.
IDLE: dict[tuple[str, str], EngineProcess] = {}


@atexit.register
def end_idle() -> None:
    """End the processes that wait for a run."""
    while IDLE:
        IDLE.popitem()[1].close()


class SGLangCode(OwnCode):
    """The code of SGLang."""

    engine = "sglang"
    releases = SGLANG_RELEASES

    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        return sglang.opening(self._settings, parts, self._policy)

    def _replica(self, parts: WorkerParts, channel: Channel) -> Replica:
        return sglang.SGLangCodeReplica(parts, self._settings, channel)


class VLLMCode(OwnCode):
    """The code of vLLM."""

    engine = "vllm"
    releases = VLLM_RELEASES

    def _opening(self, parts: WorkerParts) -> dict[str, Any]:
        return vllm.opening(self._settings, parts)

    def _replica(self, parts: WorkerParts, channel: Channel) -> Replica:
        return vllm.VLLMCodeReplica(parts, self._settings, channel)
