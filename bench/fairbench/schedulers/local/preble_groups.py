"""Preble's priority groups as the paper describes them ([Preble] §3.3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import PositiveInt


class PrebleGroups(LocalScheduler):
    """Admission in rounds from groups of requests with similar fractions of cached tokens.

    With ten groups, a request with 63 of 100 prompt tokens cached is in group 6 ([Preble] §3.3). In
    each round, group g may admit g + 1 requests, so that requests without cached tokens do not
    starve. Requests of a group are admitted in order of arrival. A round continues over several
    admission passes, because a pass often admits a single request.
    """

    name = "preble-groups"

    @dataclass(frozen=True)
    class Params:
        """Parameters of Preble's priority groups.

        ``groups`` is the number of groups, P in the paper. ``no_room=stop`` ends a scheduling pass
        at a request that does not fit into KV memory, as in SGLang; ``no_room=skip`` tries the next
        request, as in Preble's code. ``regroup=pass`` assigns every waiting request to a group in
        each pass, as in the printed Algorithm 3. By default, or with ``regroup=arrival``, a request
        stays in the group that it got at its arrival.
        """

        groups: PositiveInt = 10
        no_room: Literal["stop", "skip"] = "stop"
        regroup: Literal["arrival", "pass"] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self._new: list[Request] = []
        self._groups: list[deque[Request]] = [deque() for _ in range(params.groups)]
        self._group = params.groups - 1
        self._drawn = 0
        self._queued: dict[Request, None] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._new.append(request)
        self._queued[request] = None

    on_retract = on_arrival

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._queued.pop(request, None)
        self._drawn += 1

    def on_finish(self, request: Request) -> None:
        # A queued request can finish only if it was aborted.
        if request in self._queued:
            del self._queued[request]
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
        if self.params.regroup == "pass":
            self._new = list(self._queued)
            for group in self._groups:
                group.clear()
        for request in self._new:
            # After a retraction, ``matched_tokens`` may also count output tokens.
            cached = min(view.matched_tokens(request), request.input_tokens)
            self._groups[self.group_of(cached, request)].append(request)
        self._new.clear()

    def group_of(self, matched_tokens: int, request: Request) -> int:
        """Return the priority group (from 0) of a request with ``matched_tokens`` cached tokens."""
        group = matched_tokens * self.params.groups // request.input_tokens
        return min(group, self.params.groups - 1)

    def _next_group(self) -> None:
        self._group = (self._group or self.params.groups) - 1
        self._drawn = 0
