"""DLPM combined with deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.urgency import Urgency


class UrgentDLPM(DLPM):
    """DLPM with an ``Urgency`` that sees every request; subclasses combine the two."""

    wants_costs = True
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``aging_s`` as in ``Urgency``; inf turns aging off."""

        aging_s: Annotated[float, Gt(0)] = 60.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._urgency = Urgency(params.aging_s)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._urgency.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._urgency.on_arrival(request, view, now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._urgency.on_request_tokens(request, tokens)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        self._urgency.on_finish(request)
