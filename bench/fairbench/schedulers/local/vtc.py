"""The Virtual Token Counter ([VTC] Alg. 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.charging.engine import Prices, TokenCharging
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.tenants import Tenants


class VTC(FairScheduler):
    """The Virtual Token Counter: the waiting client with the lowest service counter goes next.

    A client's oldest request goes first. [VTC] Alg. 2 lifts a returning client's counter to the
    lowest counter of the waiting clients (lines 11-13). If no client waits, Alg. 2 lifts a
    returning client's counter to the counter of the last client to leave the queue (lines 8-10).
    """

    name = "vtc"
    # Without tenants, the gateways of several routers can share VTC's counters.
    shares_counters = True
    tokens: ClassVar[type[TokenCharging]] = TokenCharging
    # If ``lifts_alone`` is true, counters are also lifted when no client waits.
    lifts_alone: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of VTC.

        ``charge=extend`` charges uncached input tokens (as [DLPM] §7.1 requires), and
        ``charge=input`` charges the whole input ([VTC]). ``charge=gpu-time`` charges the GPU time
        of iterations. ``lift=none`` leaves out lines 6-13 of Algorithm 2, and serves only for
        comparison. ``FairParams`` describes ``sharing`` (under ``charge=extend``), ``tenants`` and
        ``weights`` ([VTC] §4.3). When memory runs out, ``preempt=fair`` retracts running requests
        of the client that is furthest ahead in service, the newest first; by default, the engine
        chooses.
        """

        constants: ClassVar[tuple[str, ...]] = ("form",)

        charge: Literal["extend", "input", "gpu-time"] = "extend"
        lift: Literal["paper", "none"] = "paper"
        sharing: Sharing | None = None
        tenants: Tenants | None = None
        form: Literal["paper"] = "paper"
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] = field(default_factory=dict)
        preempt: Literal["fair"] | None = None
        input_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = OUTPUT_PRICE

    def __init__(self, params: Params) -> None:
        self.params = params
        self.prices = Prices(
            params.input_weight, params.output_weight, whole_input=params.charge == "input"
        )
        self.account: Counters = Counters(
            params.output_weight,
            lifts=params.lift == "paper",
            lifts_alone=self.lifts_alone,
            tenants=params.tenants,
        )
        self.compose(self.account, params, self.prices, self.tokens)
        if params.preempt == "fair":
            self.retraction_order = self.furthest_ahead_first
        self.shares_counters = params.tenants is None

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.account.enter(request.client, view.clients())  # [VTC] Alg. 2 lines 6-13

    def select(self, view: WaitingView, now_s: float) -> Selection:
        # [VTC] Alg. 2 line 18: while the queue Q is not empty
        while waiting := view.clients():
            if not (yield view.oldest(self.account.least(waiting))):  # [VTC] Alg. 2 lines 19-22
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        # [VTC] Alg. 2 line 25: remember the client that left the queue last
        self.account.picked(request.client)
        self.charging.admitted(request, extend_tokens, recompute)  # [VTC] Alg. 2 line 23

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.charging.retracted(request)
        self.account.enter(request.client, view.clients())

    @property
    def counters(self) -> dict[str, float]:
        """Each client's service divided by its weight."""
        return self.account.balances()

    def service_bound(self) -> ServiceBound | NoBound:
        view: Literal["actual", "client"]
        view = "actual" if self.params.charge == "extend" else "client"
        return self._bound_or_reason(view, 0, "VTC Theorem 4.4", self.prices)
