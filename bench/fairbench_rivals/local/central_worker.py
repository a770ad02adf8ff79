"""The local scheduler of replicas under centralised DLPM ([DLPM] §5.1)."""

from __future__ import annotations

from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import NoParams
from fairbench_rivals.routing.central_dlpm import CentralOrder


class CentralWorker(FCFS):
    """A scheduler that starts the requests from ``CentralRouter`` in order of arrival.

    The scheduler reports to the router how many tokens the replica produces. Before each iteration
    that computes prompts, and after every ten decode steps, the replica sends its state and waits
    for the central scheduler. In [DLPM] §5.1, engines form a new batch after about ten decode
    steps. Without ``CentralRouter``, and in a real server, the scheduler works like ``fcfs``.
    """

    name = "central-worker"
    steps_per_pass: ClassVar[int] = 10

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._order: CentralOrder | None = None

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        if isinstance(setup.order, CentralOrder):
            self._order, self.pass_s = setup.order, setup.order.blocked_s
            self._order.told = True

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        if self._order is not None and not recompute:
            self._order.started(request, extend_tokens)

    def on_tokens(self, client: str, tokens: int) -> None:
        if self._order is not None:
            self._order.produced(client, tokens)
