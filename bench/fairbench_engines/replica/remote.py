"""A replica around the scheduler of an engine in another process, in the engine's Python."""

from __future__ import annotations

import types
from abc import abstractmethod
from collections.abc import Mapping
from itertools import count
from typing import Any

from fairbench.engine.contract import WorkerParts
from fairbench.engine.sequence import Sequence
from fairbench_engines.replica.base import RealReplica, prompt_of
from fairbench_engines.replica.process import EngineProcess


class RemoteReplica(RealReplica):
    """A replica whose engine is in ``process``; requests are known there by number.

    Args:
        parts: The parts of a worker; the scheduler only names the engine's policy.
        limits: The engine's limits on tokens and requests.
        capacity: KV memory in tokens.
        process: Process of the engine's Python.
    """

    def __init__(
        self, parts: WorkerParts, limits: Any, capacity: int, process: EngineProcess
    ) -> None:
        super().__init__(parts, limits)
        self._process, self._capacity = process, capacity
        self._numbers = count()
        self._arrivals: list[tuple[Any, ...]] = []  # requests that the engine gets with its turn
        self._outputs: dict[int, int] = {}  # output tokens that the engine has told last
        self._state: dict[str, int] = {"waiting": 0, "free": capacity, "evictable": 0}

    @property
    def cache(self) -> Any:
        return types.SimpleNamespace(
            capacity=self._capacity,
            free=self._state["free"],
            evictable=self._state["evictable"],
            abandon=lambda: None,  # the engine's process has the cache
        )

    def _waiting_count(self) -> int:
        return self._state["waiting"]

    def _produced(self, request: int) -> int:
        return self._outputs[request]

    def _take_in(self, sequence: Sequence) -> None:
        number, request = next(self._numbers), sequence.request
        asked = request.max_new_tokens, request.client, request.priority
        self._arrivals.append((number, request.prompt, sequence.output, *asked))
        self._sequences[number] = sequence

    def settle(self) -> None:
        self._outputs = dict(self._process.ask("produced", self.index))
        super().settle()

    def _start(self) -> bool:
        arrivals, self._arrivals = self._arrivals, []
        whole = self._stretch is None
        answer = self._process.ask("turn", self.index, self.clock.now_ps, arrivals, whole)
        self._note(answer)
        return self._begin(answer)

    @abstractmethod
    def _begin(self, answer: Mapping[str, Any]) -> bool:
        """Begin the iteration that the engine has planned; return False if there is none."""

    def _note(self, answer: Mapping[str, Any]) -> None:
        """Book what the engine reports beside an iteration."""
        self._state = {name: answer[name] for name in ("waiting", "free", "evictable")}
        for number, produced in answer.get("preempted", ()):
            self._end_stretch()
            sequence = self._sequences[number]
            sequence.produced = produced
            self._preempt(number, sequence)
            sequence.retract(self.clock.now_ps)
        if self._tell_evicted is not None:
            for prefix, tokens in answer.get("evicted", ()):
                self._tell_evicted(prompt_of(prefix), tokens)

    @abstractmethod
    def _preempt(self, number: int, sequence: Sequence) -> None:
        """Book that the engine has put a request back into its queue."""

    def _completed(self) -> list[int]:
        answer = self._process.ask("complete", self.index, self.clock.now_ps)
        self._note(answer)
        self._outputs = dict(answer["finished"])
        return list(self._outputs)
