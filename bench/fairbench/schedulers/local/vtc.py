"""Virtual Token Counter ([VTC] Alg. 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.tree_counters import TreeCounters
from fairbench.schedulers.base import Selection, Setup, WaitingView
from fairbench.schedulers.charging.charging import Charging
from fairbench.schedulers.charging.tokens import Prices
from fairbench.schedulers.charging.vtc_artifact import ArtifactCharging
from fairbench.schedulers.gpu_charges import GPU_TIME
from fairbench.schedulers.local.fair import FairScheduler, charging_of
from fairbench.schedulers.sharing import Sharing
from fairbench.tenants import Tenants


class VTC(FairScheduler):
    """Serves the waiting client with the least service counted; requests of a client in order.

    A client that comes back is lifted: to the counter of the client that left the queue last if
    nobody waits (lines 8-10), else to the least counter among those waiting (lines 11-13).
    """

    name = "vtc"
    shares_counters = True  # with the gateways of other routers, unless there are tenants

    @dataclass(frozen=True)
    class Params:
        """What a counter counts.

        ``charge``: ``extend`` books uncached input tokens ([DLPM] §7.1 needs it), ``input`` the
        whole input ([VTC]), ``gpu-time`` what iterations take, as in ``GPUCharges``. ``lift``:
        ``none`` is the naive form without lines 6-13, for comparison only. ``weights``: another
        spelling of the experiment's own, over which they are laid: a client of weight 2 is entitled
        to twice the service ([VTC] §4.3). ``form``: ``artifact`` charges as ``ArtifactCharging``
        and lifts nobody when nobody waits, ``artifact-2023`` is the same before June 2024.
        ``sharing``: who pays for a prefix that clients share, as in ``SharedCharges``, where
        ``charge=extend``; by default the client that computes it. ``tenants``: with ``tree``
        clients are leaves of the tree that their names spell, as in ``TreeCounters``.
        """

        charge: Literal["extend", "input", "gpu-time"] = "extend"
        lift: Literal["paper", "none"] = "paper"
        sharing: Sharing | None = None
        tenants: Tenants | None = None
        form: Literal["paper", "artifact", "artifact-2023"] = "paper"
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] = field(default_factory=dict)
        input_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        check_form(self.name, params)
        form = Counters if params.tenants is None else TreeCounters
        self.account: Counters = form(
            params.output_weight,
            lifts=params.lift == "paper",
            lifts_alone=params.form == "paper",
            weights=params.weights,
        )
        self.account.shares = params.sharing is not None
        self._compose(self.account, self._charging(self._prices()))
        self.refunds_tokens = params.form == "paper"
        self.shares_counters = params.tenants is None

    def _prices(self) -> Prices:
        params = self.params
        return Prices(
            params.input_weight, params.output_weight, whole_input=params.charge == "input"
        )

    def _charging(self, prices: Prices) -> Charging:
        params = self.params
        if params.form != "paper":
            at_finish = params.form == "artifact"
            return ArtifactCharging(
                self.account, prices, params.sharing, charges_at_finish=at_finish
            )
        return charging_of(self.account, prices, params.sharing, by_time=params.charge == GPU_TIME)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        for client in self.params.weights:
            if setup.clients and client not in setup.clients:
                raise unknown_name(f"client in {self.name}.weights", client, setup.clients)
        self.account.prepare_weights()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.account.enter(request.client, view.clients())  # lines 6-13

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self.account.settle(view.clients())
        while waiting := view.clients():  # line 19
            if not (yield view.oldest(self.account.least(waiting))):  # lines 20-22
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.account.picked(request.client)  # lines 23-25
        self.charging.admitted(request, extend_tokens, recompute)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.charging.retracted(request)
        self.account.enter(request.client, view.clients())

    @property
    def counters(self) -> dict[str, float]:
        """What each client has been served, over its weight; peers put their own mapping here."""
        return self.account.balances()

    @counters.setter
    def counters(self, kept: dict[str, float]) -> None:
        self.account.replace(kept)

    @property
    def last_left(self) -> str | None:
        """The client whose request left the queue last."""
        return self.account.last_left

    @last_left.setter
    def last_left(self, client: str | None) -> None:
        self.account.last_left = client

    def service_bound(self) -> ServiceBound | NoBound:
        params = self.params
        if params.charge == GPU_TIME:
            return NoBound(f"{self.name} charges GPU time, which service does not count")
        if params.lift == "none" or params.form != "paper":
            return NoBound(f"{self.name} bounds no service difference in this form")
        if params.sharing is not None and params.charge == "extend":
            return NoBound(f"{self.name} charges by sharing, which is not the service of a client")
        if self.account.weights != self.setup.weights:
            return NoBound(f"{self.name} counts by other weights than the clients are entitled to")
        if params.tenants is not None:
            return NoBound(f"{self.name} bounds the difference of siblings among its tenants")
        view = "actual" if params.charge == "extend" else "client"
        weights = ServiceWeights(params.input_weight, params.output_weight)
        return ServiceBound(view, 0, "VTC Theorem 4.4", weights)


def check_form(name: str, params: VTC.Params) -> None:
    """Raise UsageError for an artifact's form with what that code has not."""
    if params.form != "paper" and params.tenants is not None:
        raise UsageError(f"{name}.tenants: not with form = {params.form!r}")
    if params.charge == GPU_TIME and (params.form != "paper" or params.sharing is not None):
        raise UsageError(f"{name}.charge = {GPU_TIME!r}: not with a form or sharing")
