"""Transfers of KV cache from prefill workers to decode workers."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S
from fairbench.hardware.disaggregation import DisaggregationParams
from fairbench.hardware.step_time import PS_PER_MS
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.sequence import Sequence


class Transfers:
    """The links of all workers.

    A worker sends or receives one prompt at a time, in the order in which transfers are asked for;
    each begins when both of its workers are free. The latency comes after the last byte and
    occupies no worker.
    """

    def __init__(
        self, clock: Clock, params: DisaggregationParams, token_bytes: float, workers: int
    ) -> None:
        self.clock = clock
        self._token_ps = token_bytes / (params.bandwidth_gb_s * 10**9) * PS_PER_S
        self._latency_ps = round(params.latency_ms * PS_PER_MS)
        self._free_ps = [0] * workers

    def send(self, sequence: Sequence, source: int, target: int, done: Callable[[], None]) -> None:
        """Transfer the KV cache of a prompt; ``done`` is called when it has arrived."""
        start_ps = max(self.clock.now_ps, self._free_ps[source], self._free_ps[target])
        end_ps = start_ps + round(sequence.request.input_tokens * self._token_ps)
        self._free_ps[source] = self._free_ps[target] = end_ps
        sequence.sent_ps = start_ps
        self.clock.at(end_ps + self._latency_ps, ARRIVE, source, done)
