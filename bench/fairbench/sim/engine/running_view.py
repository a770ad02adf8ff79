"""The running batch of a simulated worker, as its scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fairbench.core import Request
from fairbench.schedulers.views import ClientLoad, Running, client_load
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.sequence import Sequence


class BatchView:
    """A RunningView. ``free_tokens`` returns the KV memory that a request could get.

    ``would_fit`` is that of the view; without it nothing is preempted.
    """

    def __init__(
        self,
        batch: RunningBatch,
        free_tokens: Callable[[], int],
        would_fit: Callable[[Request, Collection[Sequence]], bool] = lambda *_: False,
    ) -> None:
        self._batch = batch
        self._free_tokens = free_tokens
        self._would_fit = would_fit

    @property
    def free_tokens(self) -> int:
        return self._free_tokens()

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[Running]:
        for sequence in list(self._batch.sequences):
            if sequence not in self._batch.sequences:
                continue  # preempted during this walk
            request, produced = sequence.request, self._batch.produced(sequence)
            reserved = min(request.max_new_tokens - produced, CLIP_MAX_NEW_TOKENS)
            yield Running(request, produced, request.input_tokens + produced, reserved)

    def load(self, client: str) -> ClientLoad:
        if client not in self._batch.per_client:
            return ClientLoad(0, 0, 0, 0)
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        gone = [sequence for sequence in self._batch.sequences if sequence.request in without]
        return self._would_fit(request, gone)
