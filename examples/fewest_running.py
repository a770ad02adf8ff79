"""An example of your own scheduler: the client with the fewest running requests goes next.

    FAIRBENCH_SCHEDULERS=examples/fewest_running.py fairbench run --local fewest-running --dp 4

The same object schedules emulated and real servers, with ``--backend emulator`` or ``sglang``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt

from fairbench.core import Request
from fairbench.errors import unknown_name
from fairbench.schedulers.base import LocalScheduler, Selection, Setup, WaitingView


class FewestRunning(LocalScheduler):
    """Divides batch slots equally among clients, and serves each client's requests in order."""

    name = "fewest-running"

    @dataclass(frozen=True)
    class Params:
        """Weights by client, instead of the experiment's: weight 2 gives twice the slots."""

        weights: dict[str, Annotated[float, Gt(0)]] = field(default_factory=dict)

    def __init__(self, params: Params) -> None:
        self.params = params
        self.running: defaultdict[str, set[int]] = defaultdict(set)  # request ids of a client

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        for client in self.params.weights:
            if setup.clients and client not in setup.clients:
                raise unknown_name(f"client in {self.name}.weights", client, setup.clients)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while waiting := view.clients():
            client = min(waiting, key=self._places)
            if not (yield view.oldest(client)):
                return

    def _places(self, client: str) -> float:
        weight = self.params.weights.get(client, self.setup.weight(client))
        return len(self.running[client]) / weight

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.running[request.client].add(request.request_id)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.running[request.client].discard(request.request_id)

    def on_finish(self, request: Request) -> None:  # an aborted request may never have run
        self.running[request.client].discard(request.request_id)

    def balances(self) -> Mapping[str, float]:
        return {client: len(running) for client, running in self.running.items()}
