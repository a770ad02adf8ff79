"""An SGLang worker of a release before 0.5.23, whose batch keeps requests that have finished."""

from __future__ import annotations

from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.sequence import Sequence


class OlderWorker(Worker):
    """A worker whose finished requests leave the batch with the next decode step.

    Until then they take slots and reserve tokens in every pass, and the batch stays marked full.
    Requests that finish with their first token leave immediately.
    """

    __slots__ = ()

    def _start(self) -> bool:
        # ``_start_decode`` removes them. If this leaves the batch empty, another pass is made.
        if not self._retraction.kept:
            return super()._start()
        return self._start_prefill() or self._start_decode() or super()._start()

    def _start_decode(self) -> bool:
        if self._retraction.kept:
            self._retraction.kept.clear()
            self._batch_is_full = False
        return super()._start_decode()

    def _release(self, sequence: Sequence) -> None:
        decoded, full = self.batch.private(sequence), self._batch_is_full
        super()._release(sequence)
        if decoded:
            self._retraction.kept.append(sequence)
            self._batch_is_full = full

    def _slots(self) -> int:
        return min(super()._slots(), self.limits.max_running_requests - len(self._retraction.kept))

    def _reserved_tokens(self) -> int:
        unused = (one.request.max_new_tokens - one.produced for one in self._retraction.kept)
        return self.batch.reserved_tokens() + sum(min(n, CLIP_MAX_NEW_TOKENS) for n in unused)
