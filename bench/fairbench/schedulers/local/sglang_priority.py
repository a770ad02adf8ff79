"""SGLang's priority policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import (
    LocalScheduler,
    Preempt,
    Running,
    Selection,
    Setup,
    WaitingView,
)
from fairbench.schedulers.params import NotNegativeInt
from fairbench.schedulers.views import CLIP_MAX_NEW_TOKENS, least_first


class SGLangPriority(LocalScheduler):
    """SGLang's priority policy: the request with the highest priority number goes first.

    Requests with equal priority numbers keep the order of the queue. The rules follow
    schedule_policy.py of SGLang 0.5.23. A request that does not fit preempts running requests if
    their priority numbers are lower by more than ``threshold`` and the preemptions free enough
    memory. Among the running requests with the lowest priority number, the latest is preempted
    first. Preempted requests are recomputed. SGLang preempts in the pass after the failed
    admission, but this scheduler preempts in the same pass. Requests with low priority numbers may
    starve.
    """

    name = "sglang-priority"
    preempts = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``of`` maps clients to priority numbers, which override those of requests.

        ``low_first`` is SGLang's ``--schedule-low-priority-values-first``, and ``preempt=false`` is
        ``--disable-priority-preemption``.
        """

        constants: ClassVar[tuple[str, ...]] = ("threshold",)

        of: dict[str, int] = field(default_factory=dict)
        low_first: bool = False
        preempt: bool = True
        threshold: NotNegativeInt = 10

    def __init__(self, params: Params) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        setup.check_clients(f"{self.name}.of", self.params.of)

    def _number_rank(self, request: Request) -> int:
        number = self.params.of.get(request.client, request.priority)
        return number if self.params.low_first else -number

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, self._number_rank):
            if (yield request):
                continue
            victims = self._preempted_for(request, view)
            for victim in victims:
                yield Preempt(victim)
            if not victims or not (yield request):
                return

    def _preempted_for(self, request: Request, view: WaitingView) -> list[Request]:
        """Return the requests to preempt for ``request``, or [] if preemption frees too little."""
        if not self.params.preempt:
            return []
        running = list(view.running)
        limit = self._number_rank(request) + self.params.threshold
        lower = [one for one in running if self._number_rank(one.request) > limit]
        lower.sort(
            key=lambda one: (self._number_rank(one.request), one.request.arrival_s), reverse=True
        )
        room = view.running.free_tokens - sum(one.reserved_tokens for one in running)
        need = request.input_tokens - view.matched_tokens(request)
        need += min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        return _enough(lower, need - room)


def _enough(candidates: list[Running], tokens: int) -> list[Request]:
    """Return the first candidates that together free enough tokens, or [] if all free too few."""
    chosen: list[Request] = []
    for one in candidates:
        chosen.append(one.request)
        tokens -= one.held_tokens + one.reserved_tokens
        if tokens <= 0:
            return chosen
    return []
