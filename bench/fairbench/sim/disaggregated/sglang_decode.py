"""SGLang's decode worker: the first token comes with the KV cache."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.hardware.engine_params import EngineLimits
from fairbench.sim.disaggregated.decode import DecodeLimits, DecodeWorker
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.sequence import NEVER, Sequence

# up to this number of running requests, SGLang allocates twice as many slots in advance
FEW_RUNNING = 32


class SGLangDecode(DecodeWorker):
    """A decode worker on which each member keeps ``reserved`` tokens free for future outputs.

    A prompt needs its own tokens and the same number of free tokens; it must also be able to finish
    after the retraction of all others (``DecodePreallocQueue`` of SGLang 0.5). A retracted request
    is copied to the host's memory and back.
    """

    def __init__(self, parts: WorkerParts, limits: EngineLimits, reserved: int) -> None:
        running = limits.max_running_requests
        members = 3 * running if running <= FEW_RUNNING else running
        own = DecodeLimits(
            *(limits.pool_tokens, running, members, limits.load_cap, limits.host_tokens),
            step_by_step=limits.step_by_step,
        )
        super().__init__(parts, own)
        self._reserved = reserved

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def _fits_beside(self, request: Request, tokens: int) -> bool:
        allocatable = self._free - self._reserved * self.members
        whole = request.input_tokens + min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        return max(tokens + self._reserved, whole - self.batch.context_tokens) <= allocatable

    def _join(self, sequence: Sequence) -> None:
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self._clock.now_ps
            sequence.produced = 1
        super()._join(sequence)

    def _retraction_order(self) -> list[Sequence]:
        return self.batch.retraction_order()

    def _store(self, sequence: Sequence, tokens: int) -> None:
        self.host.store(sequence, tokens)

    def _load(self, sequence: Sequence) -> None:
        self.host.load(sequence, 0)
        self._join(sequence)
