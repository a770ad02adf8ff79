"""Deficit Longest Prefix Match ([DLPM] Alg. 1), with rules for cases that the paper leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.credits import Rejoin
from fairbench.schedulers.accounts.tenant_trees import CREDITS, RELAXED_TURNS, TURNS
from fairbench.schedulers.accounts.turns import Turns
from fairbench.schedulers.base import Scan, Selection, WaitingView
from fairbench.schedulers.charging.tokens import Prices
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.schedulers.sharing import Sharing
from fairbench.tenants import Tenants


class DLPM(FairScheduler):
    """Longest cached prefix first, among clients in credit; if there are none, all get a quantum.

    ``select`` is lines 16 to 22 of Algorithm 1; CHECKREFILL (lines 3 to 8) is ``Turns``, and the
    charges (lines 23 and 26) are ``Prices``. Rules where Algorithm 1 is silent or never ends: a
    full pass without progress ends the selection (line 17), and refills that leave all clients in
    debt are summed in closed form (line 7).
    """

    name = "dlpm"
    cache_aware = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of the order, the credits and the charging.

        ``quantum`` is Q^u of a client of weight 1, in service units (an output token counts
        ``output_weight``); a client of weight 2 gets twice as much. ``no_room``: ``stop`` ends the
        pass at a request that does not fit, as SGLang does; ``skip`` tries the next request, as
        Algorithm 1 reads. ``refill``: ``relaxed`` is ``RelaxedTurns``, only with ``skip``.
        ``rejoin``: the rule by which idle clients leave the list. ``charge_recompute`` also charges
        the second prefill of a retracted request. ``sharing``: the clients that pay for a shared
        prefix, as in ``SharedCharges``; the client that computes it by default. ``charge``:
        ``gpu-time`` charges the time of iterations, as in ``GPUCharges``; a quantum is then the
        time of that number of computed tokens. ``tenants``: ``tree`` keeps credits at every level
        of ``org/team/user``. ``weights`` of clients override the experiment's.
        ``preempt``: when memory runs out, ``fair`` takes it from the running requests of the client
        that is furthest ahead, the newest first; by default the engine chooses the request.
        """

        quantum: Annotated[int, Gt(0)] = 10_000
        refill: Literal["strict", "relaxed"] = "strict"
        no_room: Literal["stop", "skip"] = "stop"
        rejoin: Rejoin = "keep"
        charge_recompute: bool = False
        sharing: Sharing | None = None
        charge: Literal["gpu-time"] | None = None
        tenants: Tenants | None = None
        preempt: Literal["fair"] | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self.orders_retraction = params.preempt == "fair"
        self.prices = Prices(
            params.extend_weight, params.output_weight, recompute=params.charge_recompute
        )
        self.credits = CREDITS[params.tenants](params.quantum, params.output_weight, params.rejoin)
        self.compose(self.credits, params, self.prices)
        self._rule = (RELAXED_TURNS if params.refill == "relaxed" else TURNS)[params.tenants]

    @property
    def credit(self) -> dict[str, float]:
        """The credits of the clients on the list."""
        return self.credits.balances()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.credits.enter(request.client)  # line 12

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)
        self.credits.leave(request.client)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        turns = self._turns(view)
        progressed, refresh = True, True
        while progressed and len(view):  # line 17
            scan = self._scan(view, now_s, refresh)  # line 16
            progressed = refresh = False
            for request in scan:  # line 18
                client = request.client  # line 19
                if not self.credits.in_credit(client):  # line 20
                    turns.check_refill(client, scan)
                    if turns.over:
                        return
                    if not self.credits.in_credit(client):  # q_i > 0 of line 21
                        continue
                if (yield request):  # CANADD of line 21; lines 22 and 24 are the engine's
                    progressed = True
                elif turns.ends_without_room(client):
                    return
                turns.tried(client, scan)
            progressed = turns.take_refilled() or progressed

    def _turns(self, view: WaitingView) -> Turns:
        """Return CHECKREFILL (lines 3-8) for one pass."""
        return self._rule(self.credits, view, self._may_refill, stops=self.params.no_room == "stop")

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        """Return the order among clients in credit (line 16)."""
        return view.match_order(refresh=refresh)

    def _may_refill(self, view: WaitingView, tenant: str) -> bool:
        """Return whether to grant quanta now that no waiting client is in credit."""
        return True

    def service_bound(self) -> ServiceBound | NoBound:
        bound = self._bound("actual", self.params.quantum, "DLPM Theorem 4.1", self.prices)
        if isinstance(bound, ServiceBound) and not self._rule.bounded:
            return NoBound(f"{self.name} bounds no service difference in this form")
        return bound
