"""LightLLM's KV memory, which holds only the running batch."""

from __future__ import annotations

from fairbench.core import Prompt
from fairbench.sim.engine.batch import RunningBatch


class Memory:
    """A ``KVMemory`` without a prefix cache.

    A minibatch's memory counts once its prefill has ended.
    """

    evictable = 0

    def __init__(self, capacity: int, batch: RunningBatch) -> None:
        self.capacity = capacity
        self._batch = batch

    @property
    def free(self) -> int:
        return self.capacity - self._batch.context_tokens

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return 0: this engine caches nothing."""
        return 0

    def abandon(self) -> None:
        """Do nothing: this engine caches nothing."""
