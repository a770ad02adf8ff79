"""Deficit Longest Prefix Match ([DLPM] Alg. 1), with rules for cases that the paper leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.deficit_credits import Credits, Rejoin, RelaxedTurns, Turns
from fairbench.schedulers.base import Scan, Selection, WaitingView
from fairbench.schedulers.charging.engine import Prices
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.tenants import Tenants

KEPT_AS_IN_DLPM = (
    "charge_recompute", "extend_weight", "join", "no_room", "output_weight", "preempt", "refill",
    "rejoin", "sharing",
)  # fmt: skip
"""Parameters of DLPM that have the same default in every scheduler derived from DLPM."""


class DLPM(FairScheduler):
    """Longest cached prefix first, among the requests of clients with positive credit.

    ``select`` implements lines 16 to 22 of Algorithm 1, ``Turns`` implements CHECKREFILL (lines 3
    to 8), and ``Prices`` defines the charges (lines 23 and 26). Clients get a quantum when no
    waiting client has positive credit. Algorithm 1, as printed, loops forever in two cases. In
    fairbench, ``select`` ends if a pass over the whole queue admits no request (Alg. 1 line 17). If
    one refill would leave all clients in debt (line 7), several quanta are granted in a single
    step.
    """

    name = "dlpm"
    cache_aware = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of DLPM.

        ``quantum`` is the paper's quantum Q^u in weighted tokens, for a client of weight 1.
        ``no_room=stop`` ends the scheduling pass at a request that does not fit into memory, as
        SGLang does. ``no_room=skip`` tries the next request, as [DLPM] Alg. 1 does.
        ``refill=relaxed`` selects ``RelaxedTurns``, which only matters with ``no_room=skip``.
        ``join`` is the initial credit of a client: ``zero``, as in Algorithm 1 and by default, or
        one ``quantum``. A client that starts with a quantum need not wait until other clients have
        used up their quanta. ``rejoin`` decides when idle clients leave the client list. With
        ``charge_recompute``, the second prefill of a retracted request is charged, too.
        ``FairParams`` explains ``sharing``, ``charge``, ``tenants`` and ``weights``; with
        ``charge=gpu-time``, a quantum is the GPU time of ``quantum`` computed tokens. When memory
        runs out, ``preempt=fair`` retracts the newest request of the client that is furthest ahead
        in service; by default, the engine chooses.
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
        join: Literal["zero", "quantum"] | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = OUTPUT_PRICE
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self.prices = Prices(
            params.extend_weight, params.output_weight, recompute=params.charge_recompute
        )
        self.credits = Credits(
            params.quantum,
            params.output_weight,
            params.rejoin,
            params.tenants,
            welcomes=params.join == "quantum",
        )
        self.compose(self.credits, params, self.prices)
        if params.preempt == "fair":
            self.retraction_order = self.furthest_ahead_first
        self._rule = RelaxedTurns if params.refill == "relaxed" else Turns

    @property
    def credit(self) -> dict[str, float]:
        return self.credits.balances()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.credits.begin_request(request.client)  # [DLPM] Alg. 1 line 12

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)
        self.credits.end_request(request.client)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        turns = self._turns(view)
        progressed, refresh = True, True
        while progressed and len(view):  # [DLPM] Alg. 1 line 17
            scan = self._scan(view, now_s, refresh)  # [DLPM] Alg. 1 line 16
            progressed = refresh = False
            for request in scan:  # [DLPM] Alg. 1 line 18
                client = request.client  # [DLPM] Alg. 1 line 19
                if not self.credits.in_credit(client):  # [DLPM] Alg. 1 line 20
                    turns.check_refill(client, scan)
                    if turns.over:
                        return
                    if not self.credits.in_credit(client):  # [DLPM] Alg. 1 line 21 tests q_i > 0
                        continue
                # [DLPM] Alg. 1: ``yield`` is CANADD (line 21); the engine executes lines 22 and 24.
                if (yield request):
                    progressed = True
                elif turns.ends_without_room(client):
                    return
                turns.end_turn(client, scan)
            progressed = turns.take_refilled() or progressed

    def _turns(self, view: WaitingView) -> Turns:
        """Return a new object that executes CHECKREFILL ([DLPM] Alg. 1 lines 3-8) in one pass."""
        return self._rule(self.credits, view, self._may_refill, stops=self.params.no_room == "stop")

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        return view.match_order(refresh=refresh)

    def _may_refill(self, view: WaitingView, tenant: str) -> bool:
        """Return whether quanta may be granted when no waiting client has credit left."""
        return True

    def service_bound(self) -> ServiceBound | NoBound:
        bound = self._bound_or_reason(
            "actual", self.params.quantum, "DLPM Theorem 4.1", self.prices
        )
        if isinstance(bound, ServiceBound) and not self._rule.bounded:
            return NoBound(f"{self.name} bounds no service difference in this form")
        return bound
