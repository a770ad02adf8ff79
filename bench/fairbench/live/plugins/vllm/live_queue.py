"""vLLM's waiting requests and its running batch as a scheduler sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.core import Prompt, Request
from fairbench.schedulers.list_view import ListScan, ListView, QueueView
from fairbench.schedulers.views import ClientLoad, Running, RunningView, client_load


@dataclass(slots=True, eq=False)
class Tracked:
    """A request of vLLM's, from its arrival to its end."""

    request: Request
    theirs: Any
    prompt: Prompt  # what would be prefilled: of one that was preempted, its outputs too
    produced: int = 0  # output tokens that the scheduler has been told of
    admitted: bool = False  # so the next admission is a second one


class LiveBatch:
    """A RunningView of the running requests of a vLLM scheduler.

    A vLLM scheduler reserves no memory for outputs.
    """

    def __init__(self, scheduler: Any, tracked: Mapping[str, Tracked]) -> None:
        self._scheduler = scheduler
        self._tracked = tracked

    @property
    def free_tokens(self) -> int:
        blocks: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return blocks * int(self._scheduler.block_size)

    def __len__(self) -> int:
        return len(self._scheduler.running)

    def __iter__(self) -> Iterator[Running]:
        for theirs in list(self._scheduler.running):
            if (one := self._tracked.get(theirs.request_id)) is not None:
                held: int = min(theirs.num_computed_tokens, theirs.num_tokens)
                yield Running(one.request, theirs.num_output_tokens, held, 0)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        return False


class LiveQueue(QueueView):
    """A WaitingView in which a preempted request goes to the head.

    ``matched(request)`` returns a request's cached tokens, ``prompt(request)`` what would be
    prefilled; both are asked only for a scheduler that is ``cache_aware``.
    """

    def __init__(
        self,
        running: RunningView,
        matched: Callable[[Request], int],
        prompt: Callable[[Request], Prompt],
        *,
        cache_aware: bool,
    ) -> None:
        super().__init__(running)
        self._by_match = ListView([], matched, prompt) if cache_aware else None

    def match_order(self, *, refresh: bool = True) -> ListScan:
        assert self._by_match is not None, "only for a scheduler that declares cache_aware"
        return self._by_match.match_order(refresh=refresh)

    def matched_tokens(self, request: Request) -> int:
        assert self._by_match is not None, "only for a scheduler that declares cache_aware"
        return self._by_match.matched_tokens(request)

    def take_in(self, request: Request, *, first: bool = False) -> None:
        """Append an arrival, or put ``first`` what was preempted or passed over."""
        if first:
            self._enter_first(request)
        else:
            self.enter(request)

    def enter(self, request: Request) -> None:
        super().enter(request)
        if self._by_match is not None:
            self._by_match.enter(request)

    def _enter_first(self, request: Request) -> None:
        mine = self._of_client.pop(request.client, {})
        self._of_client = {request.client: {request: None, **mine}, **self._of_client}
        self._requests = {request: None, **self._requests}
        if self._by_match is not None:
            self._by_match.enter_first(request)

    def leave(self, request: Request) -> None:
        super().leave(request)
        if self._by_match is not None:
            self._by_match.leave(request)

    def end_pass(self) -> None:
        """Do nothing: what was admitted has left."""
