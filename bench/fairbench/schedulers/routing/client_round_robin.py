"""The router that sends each client's requests to the workers in rotation."""

from __future__ import annotations

from types import MappingProxyType

from fairbench.core import Request
from fairbench.schedulers.output_lengths import MAX_CLIENTS
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.routing.bases import FleetRouter


class ClientRoundRobin(FleetRouter):
    """Round robin by client: each client's requests go to the workers in rotation.

    Client number n (from 0) starts at worker n mod D, for D workers. With VTC as the local
    scheduler, differences in service are bounded ([DLPM] Theorem A.6).
    """

    name = "client-round-robin"
    cluster_theorems = MappingProxyType({"VTC Theorem 4.4": "VTC Theorem A.6"})

    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)
        # ``_turns`` maps each client to its next turn, the least recently served client first.
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
