"""SGLang's ``--enable-priority-scheduling``."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairbench.core import Request
from fairbench.schedulers.base import (
    LocalScheduler,
    Preempt,
    Running,
    Selection,
    Setup,
    WaitingView,
)
from fairbench.schedulers.local.kept_order import least_first
from fairbench.schedulers.params import NotNegativeInt

CLIP_NEW_TOKENS = 4096  # limit on the tokens reserved for one request


class SGLangPriority(LocalScheduler):
    """The highest number goes first, then queue order; may preempt requests of lower priority.

    The rules are those of SGLang 0.5.23, schedule_policy.py. A request that does not fit preempts
    running requests whose number is lower by more than ``threshold``, lowest number and latest
    arrival first, if together they hold enough memory; they are recomputed later. SGLang preempts
    in the pass after the one that found no room; here it is the same pass. Requests with low
    numbers may starve.
    """

    name = "sglang-priority"
    preempts = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``of`` maps a client to its number, instead of the request's own (or 0).

        ``low_first`` is ``--schedule-low-priority-values-first``; ``preempt=false`` is
        ``--disable-priority-preemption``.
        """

        of: dict[str, int] = field(default_factory=dict)
        low_first: bool = False
        preempt: bool = True
        threshold: NotNegativeInt = 10

    def __init__(self, params: Params) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        setup.check_clients(f"{self.name}.of", self.params.of)

    def _rank(self, request: Request) -> int:
        """Return a request's rank; lower goes first."""
        number = self.params.of.get(request.client, request.priority)
        return number if self.params.low_first else -number

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, self._rank):
            if (yield request):
                continue
            victims = self._victims(request, view)
            for victim in victims:
                yield Preempt(victim)
            if not victims or not (yield request):
                return

    def _victims(self, request: Request, view: WaitingView) -> list[Request]:
        """Return the requests to preempt, or none if preempting all would not suffice."""
        if not self.params.preempt:
            return []
        running = list(view.running)
        limit = self._rank(request) + self.params.threshold
        lower = [one for one in running if self._rank(one.request) > limit]
        lower.sort(key=lambda one: (self._rank(one.request), one.request.arrival_s), reverse=True)
        room = view.running.free_tokens - sum(one.reserved_tokens for one in running)
        need = request.input_tokens - view.matched_tokens(request)
        need += min(request.max_new_tokens, CLIP_NEW_TOKENS)
        return _enough(lower, need - room)


def _enough(candidates: list[Running], tokens: int) -> list[Request]:
    """Return the first candidates that free the tokens, at least one; none if too few."""
    chosen: list[Request] = []
    for one in candidates:
        chosen.append(one.request)
        tokens -= one.held_tokens + one.reserved_tokens
        if tokens <= 0:
            return chosen
    return []
