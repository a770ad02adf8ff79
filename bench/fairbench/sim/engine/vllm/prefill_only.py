"""A vLLM worker that computes prompts for others, and keeps their KV cache until it is read."""

from __future__ import annotations

from fairbench.sim.clock import DECIDE
from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.sequence import Sequence


class VLLMPrefillOnly(VLLMWorker):
    """A worker whose requests make one token. ``sent`` frees what such a request still holds."""

    def _release(self, sequence: Sequence) -> None:
        self.running.leave(sequence)
        self._booking.finish(sequence)

    def sent(self, sequence: Sequence) -> None:
        """Free the memory of a request whose KV cache has been read."""
        self.running.tables.give_back(sequence)
        self.wake()

    def wake(self) -> None:
        """Look at the waiting requests again: something else than a request here has changed."""
        if self._idle and len(self.waiting):
            self._clock.at(self._clock.now_ps, DECIDE, self.index, self._awake)
