"""Longest prefix match with a limit on the running requests of each client."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.params import PositiveInt


class ClientCappedLPM(LPM):
    """Longest cached prefix first among clients with fewer running requests than their limit.

    ``lpm-client-cap`` is a baseline for schedulers that use credits. The limit counts requests
    regardless of their cost. Memory stays unused while only clients at their limit wait. If
    requests of clients at their limit fill the engine, other clients may starve.
    """

    name = "lpm-client-cap"
    work_conserving = False

    @dataclass(frozen=True)
    class Params(LPM.Params):
        """The parameters of LPM, and ``max_running``, a client's most running requests at a worker.

        A client's limit is ``max_running`` times its weight. Every client may run at least one
        request.
        """

        constants: ClassVar[tuple[str, ...]] = ("queue_limit",)

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
        self._stop_running(request)

    def on_finish(self, request: Request) -> None:
        self._stop_running(request)

    def _stop_running(self, request: Request) -> None:
        # An aborted request may never have run.
        if request in self._running:
            self._running.remove(request)
            self._of_client[request.client] -= 1
            if not self._of_client[request.client]:
                del self._of_client[request.client]

    def select(self, view: WaitingView, now_s: float) -> Selection:
        if all(self._is_full(client) for client in view.clients()):
            return
        scan = view.match_order()
        for request in scan:
            if self._is_full(request.client):
                scan.skip(request.client)
            elif not (yield request):
                return

    def _is_full(self, client: str) -> bool:
        most = max(1, int(self.params.max_running * self.setup.weight(client)))
        return self._of_client[client] >= most
