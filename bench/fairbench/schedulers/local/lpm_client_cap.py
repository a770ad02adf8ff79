"""LPM with a limit on each client's running requests: the simplest way to keep room for others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.params import PositiveInt


class ClientCappedLPM(LPM):
    """Longest cached prefix first, among the clients with fewer running requests than their limit.

    A baseline that a policy with credits has to beat. The limit counts requests, not their cost,
    and leaves room unused while only clients at their limit wait. If the limits of some clients
    fill the engine, they share it by LPM, and others may starve.
    """

    name = "lpm-client-cap"
    work_conserving = False

    @dataclass(frozen=True)
    class Params(LPM.Params):
        """The parameters of LPM, and ``max_running`` requests per client and worker.

        The limit applies to weight 1. A client of weight 2 may run twice as many, and every client
        at least 1.
        """

        max_running: PositiveInt = 16

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._running: set[Request] = set()
        self._of_client: Counter[str] = Counter()

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._running.add(request)
        self._of_client[request.client] += 1

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._left(request)

    def on_finish(self, request: Request) -> None:
        self._left(request)

    def _left(self, request: Request) -> None:
        if request in self._running:  # otherwise it never ran
            self._running.remove(request)
            self._of_client[request.client] -= 1
            if not self._of_client[request.client]:
                del self._of_client[request.client]

    def select(self, view: WaitingView, now_s: float) -> Selection:
        if all(self._is_full(client) for client in view.clients()):
            return
        limit = self.params.queue_limit
        scan = view.match_order(refresh=not limit or len(view) <= limit)
        for request in scan:
            if self._is_full(request.client):
                scan.skip(request.client)
            elif not (yield request):
                return

    def _is_full(self, client: str) -> bool:
        most = max(1, int(self.params.max_running * self.setup.weight(client)))
        return self._of_client[client] >= most
