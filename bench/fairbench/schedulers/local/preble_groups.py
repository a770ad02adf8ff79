"""Preble's priority groups in the form of the paper ([Preble] §3.3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import PositiveInt


class PrebleGroups(LocalScheduler):
    """Groups requests by cached fraction of the prompt; a batch takes from all, in proportion.

    With P = 10 a request with 63 of 100 tokens cached is in group 6 ([Preble] §3.3). Group g may
    send g + 1 requests each round, so that requests without hits do not starve; within a group,
    requests go by arrival. A request is grouped once, in the first pass after it arrived. The round
    continues from one pass to the next, since a pass often admits a single request.
    """

    name = "preble-groups"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``groups`` is P.

        ``no_room`` is ``stop`` as in SGLang or ``skip`` as in Preble's code.
        """

        groups: PositiveInt = 10
        no_room: Literal["stop", "skip"] = "stop"

    def __init__(self, params: Params) -> None:
        self.params = params
        self._new: list[Request] = []
        self._groups: list[deque[Request]] = [deque() for _ in range(params.groups)]
        self._group = params.groups - 1
        self._drawn = 0
        self._queued: set[Request] = set()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._new.append(request)
        self._queued.add(request)

    on_retract = on_arrival

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._queued.discard(request)
        self._drawn += 1

    def on_finish(self, request: Request) -> None:
        if request in self._queued:  # aborted while it was waiting
            self._queued.discard(request)
            queue = next(q for q in (self._new, *self._groups) if request in q)
            queue.remove(request)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._sort_in(view)
        tried: list[tuple[deque[Request], Request]] = []
        try:
            while any(self._groups):
                group = self._groups[self._group]
                if not group or self._drawn > self._group:
                    self._next_group()
                    continue
                request = group.popleft()
                tried.append((group, request))
                if not (yield request) and self.params.no_room == "stop":
                    return
        finally:
            for group, request in reversed(tried):
                if request in self._queued:
                    group.appendleft(request)

    def _sort_in(self, view: WaitingView) -> None:
        for request in self._new:
            # The outputs of a retracted request may be cached, too.
            cached = min(view.matched_tokens(request), request.input_tokens)
            self._groups[self.group_of(cached, request)].append(request)
        self._new.clear()

    def group_of(self, matched_tokens: int, request: Request) -> int:
        """Return the group of a request with that many cached tokens, from 0."""
        group = matched_tokens * self.params.groups // request.input_tokens
        return min(group, self.params.groups - 1)

    def _next_group(self) -> None:
        self._group = (self._group or self.params.groups) - 1
        self._drawn = 0
