"""A vLLM worker that computes prompts for others, and keeps their KV cache until it is read."""

from __future__ import annotations

from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.sequence import Sequence


class VLLMPrefillOnly(VLLMWorker):
    """A worker whose requests make one token. ``sent`` frees what such a request still holds."""

    def _release(self, sequence: Sequence) -> None:
        self.running.leave(sequence)
        self._booking.finish(sequence)

    def sent(self, sequence: Sequence) -> None:
        self.running.tables.give_back(sequence)
        self.wake()

    def wake(self) -> None:
        if len(self.waiting):
            super().wake()
