"""The KV memory of a decode worker: what its requests hold, and for which prompts there is room.

Prompts are not shared: SGLang keeps no prefix cache on a decode worker, and this model of vLLM's
keeps none either. Memory counts in tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.hardware.engine_params import LoadCapSetting
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits of a decode worker: how many may run, and how many more may hold memory."""

    pool_tokens: int
    most_running: int
    most_members: int
    load_cap: LoadCapSetting = None
    host_tokens: int = 0
    step_by_step: bool = False


class DecodeMemory(ABC):
    """The memory of one decode worker. ``members`` are the requests that hold some of it."""

    def __init__(self, limits: DecodeLimits, batch: RunningBatch) -> None:
        self.limits = limits
        self.cache = KVCache(limits.pool_tokens)
        self.batch = batch
        self.members = 0

    @abstractmethod
    def fits(self, request: Request) -> bool:
        """Return whether the request could run here if it were alone."""

    @property
    def free(self) -> int:
        """The tokens that nobody holds, once the step under way has its own."""
        return self.cache.free - self.batch.size

    @abstractmethod
    def has_room(self, request: Request, tokens: int) -> bool:
        """Return whether ``tokens`` of a request may be held beside the members."""

    def may_take(self, request: Request, tokens: int) -> bool:
        """Return whether the request may become a member; the first one always may."""
        if not self.members:
            return True
        return self.members < self.limits.most_members and self.has_room(request, tokens)

    def take(self, tokens: int) -> None:
        """Take a member's memory."""
        self.members += 1
        self.cache.allocate(tokens)

    def give_back(self, tokens: int) -> None:
        """Free a member's memory."""
        self.members -= 1
        self.cache.release(tokens)


class SGLangMemory(DecodeMemory):
    """SGLang's rule: each member keeps ``reserved`` tokens free for its outputs to come.

    A prompt needs its own tokens and as many free ones, and it must be able to end by retracting
    all others (``DecodePreallocQueue`` of SGLang 0.5).
    """

    def __init__(self, limits: DecodeLimits, batch: RunningBatch, reserved: int) -> None:
        super().__init__(limits, batch)
        self._reserved = reserved

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def has_room(self, request: Request, tokens: int) -> bool:
        allocatable = self.free - self._reserved * self.members
        whole = request.input_tokens + min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        return max(tokens + self._reserved, whole - self.batch.context_tokens) <= allocatable


class VLLMMemory(DecodeMemory):
    """vLLM's rule: fewer run than may, and the blocks of the whole prompt are free."""

    def __init__(
        self, limits: DecodeLimits, batch: RunningBatch, block_size: int, watermark: int
    ) -> None:
        super().__init__(limits, batch)
        self._block_size = block_size
        self._watermark = watermark

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens - 1 <= self.limits.pool_tokens

    def has_room(self, request: Request, tokens: int) -> bool:
        blocks = -(-tokens // self._block_size) + self._watermark
        return self.batch.size < self.limits.most_running and blocks * self._block_size <= self.free
