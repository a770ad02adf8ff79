"""Requests-per-minute limits, the practice VTC is compared with ([VTC] §5.1)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView

WINDOW_S = 60.0


class RPM(LocalScheduler):
    """Refuses what is over a client's limit; the rest in queue order.

    ``sliding`` counts the requests accepted in the last 60 s, as the code behind [VTC]'s figures
    does ([VTC-artifact], lshare_req_queue.py); ``fixed`` those accepted in the current minute
    ([VTC] §5.3). Both refuse; neither delays a request to the next minute.
    """

    name = "rpm"

    @dataclass(frozen=True)
    class Params:
        """``limit`` is requests per client and minute; ``window`` as above."""

        limit: Annotated[int, Gt(0)] = 20
        window: Literal["sliding", "fixed"] = "sliding"

    def __init__(self, params: Params) -> None:
        self.params = params
        self._accepted: dict[str, deque[float]] = {}

    def accepts(self, request: Request, now_s: float) -> bool:
        accepted = self._accepted.setdefault(request.client, deque())
        sliding = self.params.window == "sliding"
        start_s = now_s - WINDOW_S if sliding else now_s // WINDOW_S * WINDOW_S
        while accepted and accepted[0] < start_s:  # one exactly 60 s old still counts
            accepted.popleft()
        if len(accepted) >= self.params.limit:
            return False
        accepted.append(now_s)
        return True

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in view.queue_order():
            if not (yield request):
                return
