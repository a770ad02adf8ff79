"""DLPM that keeps room free for a client in credit that has no request waiting right now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.load_cap import BatchCost, step_units
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.params import NotNegativeInt
from fairbench.tenants import ROOT

FLOOR_UNITS = 4  # units at which 4/5 of a step are useful
QUANTUM = 5_000


class HoldingDLPM(DLPM):
    """DLPM that leaves room for running clients in credit (the local half of ``fair-finish``).

    DLPM grants quanta as soon as no *waiting* client is in credit. A client with successive calls,
    as in a tree, rarely waits, so others get quanta repeatedly while it is in credit, and fill the
    batch. Here, if no waiting client is in credit and a running client without waiting requests is,
    no request is admitted while the batch is large enough to be efficient. This ends by itself:
    running requests spend credit or finish, and an idle engine never holds requests back.

    Quanta are only granted later than by DLPM, and still to all waiting clients together, so its
    bound holds.
    """

    name = "dlpm-hold"
    work_conserving = False
    wants_costs = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``hold``, which can be turned off.

        ``floor`` is the batch cost (``batch_cost``) down to which the scheduler admits nothing; 0
        means four units of the engine's own costs. While these costs are unknown, the scheduler
        admits as DLPM does, unless a floor is given. Requests then cost their context alone.
        """

        quantum: Annotated[int, Ge(1)] = QUANTUM
        hold: bool = True
        floor: NotNegativeInt = 0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._batch = BatchCost()

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._batch.enter(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_retract(request, view, now_s)
        self._batch.leave(request)

    def on_output(self, request: Request, tokens: int) -> None:
        self._batch.finish(request, tokens)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        if self._turns(view).someone_in_credit() or self._may_refill(view, ROOT):
            yield from super().select(view, now_s)

    def _may_refill(self, view: WaitingView, tenant: str) -> bool:
        # With SGLang, ``view.running`` lacks this pass's admissions, and the batch cost includes
        # them.
        if not self.params.hold or not len(self._batch):
            return True
        return not (self._someone_only_runs_in_credit(view, tenant) and self._is_heavy())

    def _someone_only_runs_in_credit(self, view: WaitingView, tenant: str) -> bool:
        waiting = self.credits.siblings(tenant, view.clients())
        requests = self.credits.requests
        return any(
            credit > 0 and requests[node] and node not in waiting
            for node, credit in self.credits.members(tenant).items()
        )

    def _is_heavy(self) -> bool:
        floor, units = self.params.floor, step_units(self.setup.costs)
        if units is None:
            return bool(floor) and self._batch.tokens(0) > floor
        return self._batch.tokens(units.request_tokens) > (floor or FLOOR_UNITS * units.unit_tokens)
