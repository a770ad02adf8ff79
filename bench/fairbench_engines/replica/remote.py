"""A simulated replica whose engine runs in a process of its own."""

from __future__ import annotations

import types
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from fairbench.core import PS_PER_S
from fairbench.engine.clock import DECIDE
from fairbench.engine.contract import WorkerParts
from fairbench.engine.sequence import Sequence
from fairbench_engines.replica.base import RealReplica, prompt_of
from fairbench_engines.replica.process import Channel
from fairbench_load.headers import tagged_client

PS_PER_NS = 1_000


class RemoteReplica(RealReplica):
    """A replica whose engine runs in another process, which identifies requests by number.

    Args:
        parts: The parts of a worker; the scheduler among these parts supplies only a name and a
            bound.
        limits: The limits of the engine on tokens and requests.
        capacity: The size of the KV memory in tokens.
        channel: The connection to the replica's process.
    """

    def __init__(self, parts: WorkerParts, limits: Any, capacity: int, channel: Channel) -> None:
        super().__init__(parts, limits)
        self._channel, self._capacity = channel, capacity
        self._numbers = count()
        # new requests that the engine receives before its next iteration
        self._arrivals: list[tuple[Any, ...]] = []
        # number of output tokens of each request, as the engine last reported
        self._outputs: dict[int, int] = {}
        self._state: dict[str, int] = {"waiting": 0, "free": capacity, "evictable": 0}
        # whether deadlines are added to client names, as in requests to real servers
        self.tags_clients = False
        self.charges_pass = False  # whether the CPU time of an admission pass delays the iteration

    @property
    def cache(self) -> Any:
        return types.SimpleNamespace(
            capacity=self._capacity,
            free=self._state["free"],
            evictable=self._state["evictable"],
            # The KV cache is in the engine's process, so nothing is released here.
            abandon=lambda: None,
        )

    def _waiting_count(self) -> int:
        return self._state["waiting"]

    def _produced(self, request: int) -> int:
        return self._outputs[request]

    def _take_in(self, sequence: Sequence) -> None:
        number, request = next(self._numbers), sequence.request
        client = request.client
        if self.tags_clients:
            client = tagged_client(request, self.clock.now_ps / PS_PER_S)
        asked = request.max_new_tokens, client, request.priority
        self._arrivals.append((number, request.prompt, sequence.output, *asked))
        self._sequences[number] = sequence

    def settle(self) -> None:
        if is_ahead := bool(self._channel.unanswered):
            self._channel.receive()  # drop the result of an iteration that the run's end cut off
        self._outputs = dict(self._channel.ask("produced", is_ahead))
        super().settle()

    def _start(self) -> bool:
        arrivals, self._arrivals = self._arrivals, []
        whole = self._stretch is None or self.charges_pass
        answer = self._channel.ask("turn", self.clock.now_ps, arrivals, whole)
        self._note(answer)
        if not self.charges_pass:
            return self._begin(answer)
        if is_planned := "decode" in answer or "prefill" in answer:
            self._end_stretch()
            start_ps = self.clock.now_ps + answer["pass_ns"] * PS_PER_NS
            self.clock.at(start_ps, DECIDE, self.index, partial(self._begin_planned, answer))
        return is_planned

    def _begin_planned(self, answer: Mapping[str, Any]) -> None:
        self._begin(answer)

    @abstractmethod
    def _begin(self, answer: Mapping[str, Any]) -> bool:
        """Begin the iteration that the engine planned; return False if the engine planned none."""

    def _note(self, answer: Mapping[str, Any]) -> None:
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
        """Record that the engine has preempted a running request."""

    def _await_end(self, duration_ps: int, complete: Callable[[], list[int]]) -> None:
        # The engine computes the batch's result while the simulator continues with other replicas.
        # No event before the end of the batch can change the batch's result.
        self._channel.send("complete", self.clock.now_ps + duration_ps)
        super()._await_end(duration_ps, complete)

    def _completed(self) -> list[int]:
        answer = self._channel.receive()
        self._note(answer)
        self._outputs = dict(answer["finished"])
        return list(self._outputs)
