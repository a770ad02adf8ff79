"""Limits on requests per minute, a baseline of the VTC paper ([VTC] §5.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import PositiveInt

WINDOW_S = 60.0


class RPM(LocalScheduler):
    """A limit on each client's requests per minute; accepted requests run in queue order.

    ``window=sliding`` counts the requests accepted in the last 60 s, as in the code of [VTC]'s
    figures ([VTC-artifact], lshare_req_queue.py). ``window=fixed`` counts the requests accepted in
    the current minute. By default, a request above the limit is refused, as in [VTC-artifact] and
    in [VTC] §5.3. With ``over=delay``, a request above the limit waits ([VTC] §5.1).
    """

    name = "rpm"
    # With ``over=delay``, requests may wait although memory is free.
    work_conserving = False

    @dataclass(frozen=True)
    class Params:
        """Parameters of the limit on requests per minute.

        ``limit`` is the number of requests per client and minute. The docstring of ``RPM`` explains
        ``window`` and ``over``.
        """

        limit: PositiveInt = 20
        window: Literal["sliding", "fixed"] = "sliding"
        over: Literal["refuse", "delay"] = "refuse"

    def __init__(self, params: Params) -> None:
        self.params = params
        self._limit = params.limit
        # ``_let_through`` holds the times (s) of each client's last ``limit`` accepted requests.
        self._let_through: dict[str, deque[float]] = {}
        # ``_from_s`` maps each delayed request to its earliest start time in seconds.
        self._from_s: dict[Request, float] = {}

    def accepts(self, request: Request, now_s: float) -> bool:
        past = self._let_through.setdefault(request.client, deque(maxlen=self._limit))
        sliding = self.params.window == "sliding"
        if self.params.over == "delay":
            from_s = max(now_s, past[-1]) if past else now_s
            if len(past) == self._limit:
                from_s = max(from_s, (past[0] if sliding else _minute_s(past[0])) + WINDOW_S)
            past.append(from_s)
            if from_s > now_s:
                self._from_s[request] = from_s
            return True
        start_s = now_s - WINDOW_S if sliding else _minute_s(now_s)
        # A request accepted exactly 60 s ago still counts.
        if len(past) == self._limit and past[0] >= start_s:
            return False
        past.append(now_s)
        return True

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in view.queue_order():
            if self._from_s.get(request, now_s) > now_s:
                continue
            if not (yield request):
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._from_s.pop(request, None)

    def on_finish(self, request: Request) -> None:
        self._from_s.pop(request, None)

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        later = [at_s for at_s in self._from_s.values() if at_s > now_s]
        return min(later, default=None)

    def balances(self) -> Mapping[str, float]:
        """Return each client's number of delayed requests."""
        held: dict[str, float] = {}
        for request in self._from_s:
            held[request.client] = held.get(request.client, 0) + 1
        return held


def _minute_s(time_s: float) -> float:
    return time_s // WINDOW_S * WINDOW_S
