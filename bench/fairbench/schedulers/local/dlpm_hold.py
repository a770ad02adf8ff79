"""DLPM that reserves capacity for clients with credit but no waiting request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.load_cap import BatchCost, step_units
from fairbench.schedulers.local.dlpm import DLPM, KEPT_AS_IN_DLPM
from fairbench.schedulers.params import NotNegativeInt
from fairbench.tenants import ROOT

# Requests may wait if the batch costs more than ``FLOOR_UNITS`` units, 4/5 of a decode step's time.
FLOOR_UNITS = 4
QUANTUM = 5_000


class HoldingDLPM(DLPM):
    """DLPM that reserves capacity for running clients with credit, used with ``fair-finish``.

    DLPM grants quanta as soon as no *waiting* client has positive credit. A client that sends one
    call at a time rarely has a waiting request. Under DLPM, other clients get quanta again and
    again and fill the batch while a client between two calls still has credit. ``HoldingDLPM``
    admits no request while the batch is large enough to be efficient and only running clients
    without waiting requests have positive credit. No request waits forever, because running
    requests spend credit or finish. DLPM's bound on service differences holds, because all waiting
    clients still get their quanta at the same time.
    """

    name = "dlpm-hold"
    work_conserving = False
    wants_costs = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and of the rule that lets requests wait (off if ``hold=false``).

        ``floor`` is the batch cost (``BatchCost``), in tokens, above which requests wait; 0 selects
        ``FLOOR_UNITS`` units. If the costs of decode steps are unknown, the cost of a request is
        its context length in tokens. The scheduler then works like DLPM unless ``floor`` is set.
        """

        constants: ClassVar[tuple[str, ...]] = KEPT_AS_IN_DLPM

        quantum: Annotated[int, Ge(1)] = QUANTUM
        hold: bool = True
        floor: NotNegativeInt = 0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._batch = BatchCost()

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._batch.add_running(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_retract(request, view, now_s)
        self._batch.remove_running(request)

    def on_output(self, request: Request, tokens: int) -> None:
        self._batch.end_running(request, tokens)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        if self._turns(view).someone_in_credit() or self._may_refill(view, ROOT):
            yield from super().select(view, now_s)

    def _may_refill(self, view: WaitingView, tenant: str) -> bool:
        # In SGLang, ``view.running`` lacks requests admitted in the current pass, so use
        # ``_batch``.
        if not self.params.hold or not len(self._batch):
            return True
        waiting, requests = self.credits.siblings(tenant, view.clients()), self.credits.requests
        only_runs_in_credit = any(
            credit > 0 and requests[node] and node not in waiting
            for node, credit in self.credits.members(tenant).items()
        )
        return not (only_runs_in_credit and self._is_heavy())

    def _is_heavy(self) -> bool:
        floor, units = self.params.floor, step_units(self.setup.costs)
        if units is None:
            return bool(floor) and self._batch.cost_tokens(0) > floor
        return self._batch.cost_tokens(units.request_tokens) > (
            floor or FLOOR_UNITS * units.unit_tokens
        )
