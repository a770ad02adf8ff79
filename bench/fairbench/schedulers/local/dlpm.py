"""Deficit Longest Prefix Match ([DLPM] Alg. 1), with its gaps closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fairbench.core import NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.credits import Credits, Rejoin
from fairbench.schedulers.accounts.tree_credits import TreeCredits
from fairbench.schedulers.accounts.turns import TreeTurns, Turn, Turns
from fairbench.schedulers.base import Scan, Selection, Setup, WaitingView
from fairbench.schedulers.charging.tokens import Prices
from fairbench.schedulers.gpu_charges import GPU_TIME
from fairbench.schedulers.local.fair import FairScheduler, charging_of
from fairbench.schedulers.sharing import Sharing
from fairbench.tenants import Tenants


class DLPM(FairScheduler):
    """LPM order, but only clients in credit; when no waiting client is, all get a quantum.

    Where Algorithm 1 is silent or never ends: a full pass without progress ends the selection
    (line 17), and refills that leave everybody in debt are summed in closed form (line 7).
    """

    name = "dlpm"
    cache_aware = True

    @dataclass(frozen=True)
    class Params:
        """``quantum`` is Q^u in service units (tokens; an output token counts ``output_weight``).

        It is that of a client of weight 1; one of weight 2 gets twice as much.
        ``no_room``: ``stop`` ends the pass as SGLang does, ``skip`` tries the next request as
        Algorithm 1 reads. ``refill``: ``relaxed`` does not let a client whose request did not fit
        hold up the refill (only with ``skip``; it breaks Theorem 4.1). ``rejoin``: how idle clients
        leave the list, as in ``Credits``. ``charge_recompute``: charge the second prefill of a
        retracted request too. ``sharing``: who pays for a prefix that clients share, as in
        ``SharedCharges``, by default the client that computes it. ``charge``: ``gpu-time`` is what
        iterations take, as in ``GPUCharges``, in place of tokens; a quantum is then the time of so
        many computed tokens. ``tenants``: ``tree`` keeps credits at every level of
        ``org/team/user`` and grants quanta level by level.
        """

        quantum: Annotated[int, Gt(0)] = 10_000
        refill: Literal["strict", "relaxed"] = "strict"
        no_room: Literal["stop", "skip"] = "stop"
        rejoin: Rejoin = "keep"
        charge_recompute: bool = False
        sharing: Sharing | None = None
        charge: Literal["gpu-time"] | None = None
        tenants: Tenants | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        prices = Prices(
            params.extend_weight, params.output_weight, recompute=params.charge_recompute
        )
        form = Credits if params.tenants is None else TreeCredits
        self.credits = form(params.quantum, params.output_weight, params.rejoin)
        self.credits.shares = params.sharing is not None
        by_time = params.charge == GPU_TIME
        if by_time and params.sharing is not None:
            raise UsageError(f"{self.name}.charge = {GPU_TIME!r}: not with sharing")
        charging = charging_of(self.credits, prices, params.sharing, by_time=by_time)
        self._compose(self.credits, charging)

    @property
    def credit(self) -> dict[str, float]:
        """The credits of the clients that are on the list."""
        return self.credits.balances()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.credits.unit_of_time = self.charging.token_ps

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.credits.enter(request.client)  # line 12

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)
        self.credits.leave(request.client)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self.credits.settle(view.clients())
        turns = self._turns(view)
        progressed, refresh = True, True
        while progressed and len(view):  # line 17
            progressed = False
            scan = self._scan(view, now_s, refresh)  # line 16
            refresh = False
            for request in scan:  # line 18
                turn = turns.of(request.client)  # lines 19-21, and CHECKREFILL (lines 3-8)
                if turn is Turn.NOBODY:
                    return
                if turn is Turn.OTHERS:
                    turns.pass_over(request.client, scan)
                if turn is not Turn.GO:
                    continue
                if (yield request):  # lines 21-24; on_admitted charges
                    progressed = True
                elif self.params.no_room == "stop":
                    return
                elif self.params.refill == "relaxed":
                    turns.blocked.add(request.client)
                if not turns.stand(request.client):
                    scan.unskip_all()
            progressed = turns.take_refilled() or progressed

    def _turns(self, view: WaitingView) -> Turns:
        if isinstance(self.credits, TreeCredits):
            return TreeTurns(self.credits, view, self._may_refill)
        return Turns(self.credits, view, self._may_refill)

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        """Return the order among clients in credit (line 16)."""
        return view.match_order(refresh=refresh)

    def _may_refill(self, view: WaitingView, tenant: str) -> bool:
        """Tell whether quanta are granted now that nobody who waits is in credit."""
        return True

    def service_bound(self) -> ServiceBound | NoBound:
        params = self.params
        if params.charge == GPU_TIME:
            return NoBound(f"{self.name} charges GPU time, which service does not count")
        if params.sharing is not None:
            return NoBound(f"{self.name} charges by sharing, which is not the service of a client")
        if params.tenants is not None:
            return NoBound(f"{self.name} bounds the difference of siblings among its tenants")
        if params.refill == "relaxed" or params.rejoin == "paper_zero" or params.charge_recompute:
            return NoBound(f"{self.name} bounds no service difference in this form")
        weights = ServiceWeights(params.extend_weight, params.output_weight)
        return ServiceBound("actual", params.quantum, "DLPM Theorem 4.1", weights)
