"""Round-robin of each client's own requests; bounds unfairness with VTC ([DLPM] Theorem A.6)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from fairbench.core import Request
from fairbench.schedulers.base import Router
from fairbench.schedulers.routing.fleet import Fleet


class ClientRoundRobin(Router):
    """One counter per client; the n-th client to appear (from 0) starts at worker n mod D.

    With a common start the first request of every client would land on worker 0.
    """

    name = "client-round-robin"
    cluster_theorems = MappingProxyType({"VTC Theorem 4.4": "VTC Theorem A.6"})

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params: Params, workers: int) -> None:
        self._fleet = Fleet(workers)
        self._turns: dict[str, int] = {}

    def route(self, request: Request, now_s: float) -> int:
        turn = self._turns.setdefault(request.client, len(self._turns))
        self._turns[request.client] = turn + 1
        workers = self._fleet.workers
        return workers[turn % len(workers)]

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self._fleet.join(worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        self._fleet.leave(worker)
