"""An SGLang worker that computes prompts for others, and keeps their KV cache until it is sent."""

from __future__ import annotations

from fairbench.sim.engine.sglang.retraction import store_outputs
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.sequence import Sequence


class PrefillOnly(Worker):
    """A worker whose requests make one token. ``sent`` frees what such a request still holds."""

    def _release(self, sequence: Sequence) -> None:
        self._batch_is_full = False
        self.batch.leave(sequence)

    def sent(self, sequence: Sequence) -> None:
        store_outputs(self.cache, sequence)
        self.wake()

    def wake(self) -> None:
        if len(self.waiting):
            super().wake()
