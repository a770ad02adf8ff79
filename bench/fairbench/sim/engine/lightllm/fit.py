"""Admission on LightLLM: whether the batch with one more request can decode to its end."""

from __future__ import annotations

from fairbench.hardware.lightllm_params import LightLLMLimits
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.sequence import Sequence


class FitTest:
    """A test whether the batch plus another request can decode to its end in the pool.

    With requests sorted by remaining outputs, descending, the pool must hold at every finish: max
    over k of (remaining_k * k + sum of the k current lengths) < pool. The last token of a request
    needs no memory. A new request is counted as after its prefill.
    """

    def __init__(self, batch: RunningBatch, limits: LightLLMLimits) -> None:
        self._limits = limits
        self._clients = set(batch.per_client)
        self._lengths: list[tuple[int, int]] = []  # (remaining outputs, current length)
        for sequence in batch.sequences:
            produced = batch.produced(sequence)
            remaining = sequence.output.length - produced - 1
            self._lengths.append((remaining, sequence.total + produced))

    def try_add(self, sequence: Sequence) -> bool:
        """Add a request if it fits; returns whether it did."""
        extended = [*self._lengths, (sequence.output.length - 1, sequence.total + 1)]
        if len(extended) > self._limits.max_running_requests:
            return False
        clients = self._clients | {sequence.request.client}
        extended.sort(key=lambda length: -length[0])
        held = most = 0
        for size, (remaining, length) in enumerate(extended, start=1):
            held += length
            most = max(most, remaining * size + held)
        if most >= self._limits.pool_tokens - self._limits.client_tokens * len(clients):
            return False
        self._lengths, self._clients = extended, clients
        return True
