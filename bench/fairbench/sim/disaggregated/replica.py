"""A prefill worker and the decode workers behind it, as one replica; and the links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from fairbench.core import PS_PER_S, Segment
from fairbench.hardware.cluster_params import DisaggregationParams
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.disaggregated.decode import DecodeWorker
from fairbench.sim.engine.contract import KVMemory, Replica
from fairbench.sim.sequence import REFUSED, Sequence

Then = Callable[[], None]


class PrefillEngine(Replica, Protocol):
    """An engine replica that computes prompts and keeps their KV cache until it is ``sent``."""

    cap: LoadCap

    def sent(self, sequence: Sequence) -> None:
        """Free the memory of a request whose KV cache has been sent."""

    def wake(self) -> None:
        """Examine the waiting requests again after a change other than a request here."""


class Transfers:
    """The links of all workers.

    A worker sends or receives one prompt at a time, in the order of the transfer requests; each
    transfer begins when both of its workers are free. The latency comes after the last byte and
    occupies no worker.
    """

    def __init__(
        self, clock: Clock, params: DisaggregationParams, token_bytes: float, workers: int
    ) -> None:
        self.clock = clock
        self._token_ps = token_bytes / (params.bandwidth_gb_s * 10**9) * PS_PER_S
        self._latency_ps = round(params.latency_ms * PS_PER_MS)
        self._free_ps = [0] * workers

    def send(self, sequence: Sequence, source: int, target: int, done: Then) -> None:
        """Transfer the KV cache of a prompt; ``done`` is called when it has arrived."""
        start_ps = max(self.clock.now_ps, self._free_ps[source], self._free_ps[target])
        end_ps = start_ps + round(sequence.request.input_tokens * self._token_ps)
        self._free_ps[source] = self._free_ps[target] = end_ps
        sequence.sent_ps = start_ps
        self.clock.at(end_ps + self._latency_ps, ARRIVE, source, done)


class PrefillReplica:
    """A ``Replica`` whose requests go through ``engine``, a transfer and a decode worker.

    A request is assigned to the decode worker that has the fewest at its arrival. ``engine`` works
    on a copy of the request, which ends with the request's first token. Subclasses define when the
    decode worker reserves memory.
    """

    def __init__(
        self, index: int, engine: PrefillEngine, decodes: list[DecodeWorker], transfers: Transfers
    ) -> None:
        self.index = index
        self.engine = engine
        self.scheduler, self.batch = engine.scheduler, engine.batch
        self._decodes = decodes
        self._transfers = transfers
        # requests not received yet, with their copies
        self._copies: dict[Sequence, Sequence | None] = {}
        self._unreserved = 0  # number of these requests that the engine has not received yet

    # The interface of a replica, for its cluster.

    @property
    def on_pass(self) -> Then | None:
        return self.engine.on_pass

    @on_pass.setter
    def on_pass(self, heard: Then | None) -> None:
        self.engine.on_pass = heard

    @property
    def cache(self) -> KVMemory:
        return self.engine.cache

    @property
    def queued_count(self) -> int:
        return self.engine.queued_count + self._unreserved

    @property
    def running_count(self) -> int:
        return self.engine.running_count

    @property
    def saturated(self) -> bool:
        return self.engine.saturated or self._unreserved > 0

    def sync(self) -> None:
        self.engine.sync()

    def settle(self) -> None:
        self.engine.settle()

    def in_flight(self) -> list[Sequence]:
        for sequence, copy in self._copies.items():
            if copy is not None:
                _take_over(sequence, copy)
        return list(self._copies)

    def submit(self, sequence: Sequence) -> None:
        sequence.worker = self.index
        if not self._decodes[0].fits(sequence.request):
            sequence.refuse()
            return
        self._copies[sequence] = None
        self._unreserved += 1
        self._arrived(sequence)

    # The path of a request.

    def _arrived(self, sequence: Sequence) -> None:
        """Send a request on: to the engine, unless memory must be reserved first."""
        self._assign(sequence)
        self._compute(sequence)

    def _assign(self, sequence: Sequence) -> DecodeWorker:
        decode = min(self._decodes, key=lambda one: (one.assigned, one.index))
        decode.assigned += 1
        sequence.decode_worker = decode.index
        return decode

    def _decode_of(self, sequence: Sequence) -> DecodeWorker:
        return self._decodes[sequence.decode_worker - self._decodes[0].index]

    def _compute(self, sequence: Sequence) -> None:
        request, output = sequence.request, sequence.output
        copy = Sequence(
            replace(request, max_new_tokens=1),
            Segment(output.key, min(1, output.length)),
            sequence.arrival_ps,
            partial(self._computed, sequence),
        )
        self._unreserved -= 1
        self._copies[sequence] = copy
        self.engine.submit(copy)

    def _computed(self, sequence: Sequence, copy: Sequence) -> None:
        _take_over(sequence, copy)
        if copy.status == REFUSED:
            del self._copies[sequence]
            self._refused(sequence)
            sequence.refuse()
            return
        sequence.computed_ps = self._transfers.clock.now_ps
        self._ready(sequence)

    def _refused(self, sequence: Sequence) -> None:
        """Undo the reservation for a request that the engine's scheduler does not accept."""
        self._decode_of(sequence).cancel(sequence)

    def _ready(self, sequence: Sequence) -> None:
        """Handle a computed prompt, whose memory is reserved."""
        self._send(sequence)

    def _send(self, sequence: Sequence) -> None:
        target = sequence.decode_worker
        self._transfers.send(sequence, self.index, target, partial(self._sent, sequence))

    def _sent(self, sequence: Sequence) -> None:
        copy = self._copies.pop(sequence)
        assert copy is not None
        self.engine.sent(copy)
        self._decode_of(sequence).receive(sequence)


class ReservesAtArrival(PrefillReplica):
    """SGLang: the prompt waits for the decode worker's memory, then in the prefill queue."""

    def _arrived(self, sequence: Sequence) -> None:
        self._assign(sequence).ask(sequence, partial(self._compute, sequence))


class ReservesWhenComputed(PrefillReplica):
    """vLLM: the prompt is computed first, and read once the decode worker has memory for it."""

    def _refused(self, sequence: Sequence) -> None:
        self._decode_of(sequence).assigned -= 1

    def _ready(self, sequence: Sequence) -> None:
        self._decode_of(sequence).ask(sequence, partial(self._send, sequence))


def _take_over(sequence: Sequence, copy: Sequence) -> None:
    """Copy a request's records from its copy in the prefill engine."""
    sequence.admitted_ps = copy.admitted_ps
    sequence.cached_tokens, sequence.extend_tokens = copy.cached_tokens, copy.extend_tokens
    sequence.gpu_ps = copy.gpu_ps
