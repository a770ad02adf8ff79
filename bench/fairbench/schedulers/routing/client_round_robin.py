"""A router that distributes each client's requests in rotation; with VTC, this bounds unfairness.

The bound is [DLPM] Theorem A.6.
"""

from __future__ import annotations

from types import MappingProxyType

from fairbench.core import Request
from fairbench.schedulers.accounts.worker_credits import MAX_CLIENTS
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.routing.bases import FleetRouter


class ClientRoundRobin(FleetRouter):
    """A round-robin router for each client; the n-th client (from 0) starts at worker n mod D.

    With a common start, the first request of every client would go to worker 0.
    """

    name = "client-round-robin"
    cluster_theorems = MappingProxyType({"VTC Theorem 4.4": "VTC Theorem A.6"})

    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)
        # the longest unused client first, which is also forgotten first
        self._turns: dict[str, int] = {}
        self._appeared = 0

    def route(self, request: Request, now_s: float) -> int:
        turn = self._turns.pop(request.client, None)
        if turn is None:
            turn, self._appeared = self._appeared, self._appeared + 1
            if len(self._turns) >= MAX_CLIENTS:
                del self._turns[next(iter(self._turns))]
        self._turns[request.client] = turn + 1
        workers = self._fleet.workers
        return workers[turn % len(workers)]
