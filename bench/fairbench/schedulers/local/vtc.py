"""Virtual Token Counter ([VTC] Alg. 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.tenant_trees import COUNTERS
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.charging.tokens import Prices, TokenCharging
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.schedulers.sharing import Sharing
from fairbench.studies import study
from fairbench.tenants import Tenants


class VTC(FairScheduler):
    """The waiting client with the least counted service goes next, with its oldest request.

    A returning client is lifted: to the counter of the client that left the queue last if no client
    waits (lines 8-10), otherwise to the least counter of the waiting clients (lines 11-13).
    """

    name = "vtc"
    shares_counters = True  # with the gateways of other routers, unless there are tenants

    @dataclass(frozen=True)
    class Params:
        """Parameters of the counters and the charging.

        ``charge``: ``extend`` charges uncached input tokens ([DLPM] §7.1 needs it), ``input`` the
        whole input ([VTC]), ``gpu-time`` the time of iterations, as in ``GPUCharges``. ``lift``:
        ``none`` leaves out lines 6-13, for comparison only. ``weights`` of clients override the
        experiment's ([VTC] §4.3). ``form``: ``artifact`` and ``artifact-2023`` charge as in the
        study's ``vtc/forms.py`` and lift no client when no client waits. ``sharing``: the clients
        that pay for a shared prefix, as in ``SharedCharges``, where ``charge=extend``; the client
        that computes it by default. ``tenants``: ``tree`` makes clients leaves of the tree that
        their names spell, as in ``TreeCounters``.
        ``preempt``: when memory runs out, ``fair`` takes it from the running requests of the client
        that is furthest ahead, the newest first; by default the engine chooses the request.
        """

        charge: Literal["extend", "input", "gpu-time"] = "extend"
        lift: Literal["paper", "none"] = "paper"
        sharing: Sharing | None = None
        tenants: Tenants | None = None
        form: Literal["paper", "artifact", "artifact-2023"] = "paper"
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] = field(default_factory=dict)
        preempt: Literal["fair"] | None = None
        input_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        self.orders_retraction = params.preempt == "fair"
        self.prices = Prices(
            params.input_weight, params.output_weight, whole_input=params.charge == "input"
        )
        self.account: Counters = COUNTERS[params.tenants](
            params.output_weight, lifts=params.lift == "paper", lifts_alone=params.form == "paper"
        )
        self.compose(self.account, params, self.prices, self._tokens())
        self.shares_counters = params.tenants is None

    def _tokens(self) -> type[TokenCharging]:
        """Return the form in which tokens are charged; the study has those of the artifact."""
        if self.params.form == "paper":
            return TokenCharging
        forms = study("vtc.forms", f"{self.name}.form = {self.params.form!r}")
        found: type[TokenCharging] = forms.charging_form(self.name, self.params)
        return found

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.account.enter(request.client, view.clients())  # lines 6-13

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while waiting := view.clients():  # line 18, while Q is not empty
            if not (yield view.oldest(self.account.least(waiting))):  # lines 19-22
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.account.picked(request.client)  # line 25: l of line 9 is the client that left last
        self.charging.admitted(request, extend_tokens, recompute)  # line 23; line 29 is on_steps

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.charging.retracted(request)
        self.account.enter(request.client, view.clients())

    @property
    def counters(self) -> dict[str, float]:
        """The service of each client over its weight."""
        return self.account.balances()

    def service_bound(self) -> ServiceBound | NoBound:
        view: Literal["actual", "client"]
        view = "actual" if self.params.charge == "extend" else "client"
        return self._bound(view, 0, "VTC Theorem 4.4", self.prices)
