"""The base class of fair schedulers, which have an order, an account and a charging rule.

The account records each client's service, and the charging rule sets the price of each event. A
subclass defines the order in which waiting requests are served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.base import LocalScheduler, RunningView, Setup, WaitingView
from fairbench.schedulers.charging.engine import (
    Charging,
    ChargingParams,
    Prices,
    TimeCharging,
    TokenCharging,
    engine_charging,
)
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.params import Positive, PositiveInt
from fairbench.tenants import Tenants


@dataclass(frozen=True)
class FairParams:
    """Parameters that all fair schedulers inherit: charges, tenants and weights.

    ``charge=gpu-time`` charges the time of iterations instead of tokens (``GPUCharges``).
    ``sharing`` selects the clients that pay for a shared prefix (``SharedCharges``); by default,
    the client whose request computes the prefix pays. With ``tenants=tree``, service is shared
    fairly at every level of ``org/team/user``. ``weights`` of clients override the experiment's
    weights.
    """

    charge: Literal["gpu-time"] | None = None
    sharing: Sharing | None = None
    tenants: Tenants | None = None
    weights: dict[str, Positive] | None = None
    input_weight: PositiveInt = 1
    output_weight: PositiveInt = OUTPUT_PRICE


CHARGED = {"prepare", "on_admitted", "on_tokens", "on_retract", "on_finish", "forget"}
"""The methods in which ``FairScheduler`` charges clients."""


class FairScheduler(LocalScheduler):
    """A scheduler whose subclasses choose an account and a charging rule by calling ``compose``."""

    account: Account
    charging: Charging

    def __init_subclass__(cls) -> None:
        """Raise UsageError for a subclass with a charging hook that does not call ``super``."""
        super().__init_subclass__()
        for hook in CHARGED & vars(cls).keys():
            code = getattr(vars(cls)[hook], "__code__", None)
            if code is not None and not {"super", "charging"} & {*code.co_names}:
                raise UsageError(
                    f"class {cls.__name__}: {hook} must call super().{hook}, or the charges of "
                    "clients are wrong"
                )

    _weights: Mapping[str, float]

    def _compose(
        self, account: Account, charging: Charging, weights: Mapping[str, float] | None = None
    ) -> None:
        self.account, self.charging, self._weights = account, charging, weights or {}
        self.refunds_tokens = charging.refunds
        self.account.prepare(self.setup.weighted("weights", weights))
        parts: dict[str, Any] = {"on_read": charging.read}
        if type(self).on_tokens is FairScheduler.on_tokens:
            parts["on_steps"] = charging.steps
        if charging.per_request:
            parts["on_request_tokens"] = charging.request_tokens
        if isinstance(charging, TimeCharging):
            parts |= {"on_prompt_time": charging.prompt_time, "on_gpu_time": charging.gpu_time}
            self.wants_costs = True
        for name, charge in parts.items():
            # A hook that the subclass itself defines is not replaced.
            if getattr(type(self), name) is None:
                setattr(self, name, charge)

    def compose(
        self,
        account: Account,
        params: ChargingParams,
        prices: Prices | None = None,
        tokens: type[TokenCharging] = TokenCharging,
    ) -> None:
        """Store the account, and create the charging rule that the parameters select.

        ``prices`` are by default the prices in ``params``. ``tokens`` is the class of the rule that
        charges tokens (instead of GPU time). Raises UsageError if ``sharing`` is combined with
        charging by GPU time.
        """
        if prices is None:
            assert isinstance(params, FairParams)
            prices = Prices(params.input_weight, params.output_weight)
        charging = engine_charging(self.name, account, params, prices, tokens)
        self._compose(account, charging, params.weights)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.account.prepare(setup.weighted(f"{self.name}.weights", self._weights))
        self.charging.prepare(self.name, setup)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.charging.admitted(request, extend_tokens, recompute)

    def on_tokens(self, client: str, tokens: int) -> None:
        self.charging.tokens(client, tokens)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.charging.retracted(request)

    def furthest_ahead_first(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Sort requests by their client's lead in service (highest first), then newest first."""
        newest = [one.request for one in running][::-1]
        ahead = {client: self.account.ahead(client) for client in {r.client for r in newest}}
        return sorted(newest, key=lambda request: ahead[request.client], reverse=True)

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)

    def forget(self, client: str) -> None:
        self.account.forget(client)
        self.charging.forget(client)

    def _bound_or_reason(
        self, view: Literal["actual", "client"], quantum: int, theorem: str, prices: Prices
    ) -> ServiceBound | NoBound:
        """Return the bound of ``theorem``, or the reason why ``theorem`` does not hold."""
        if reason := self.charging.no_bound or self.account.no_bound:
            return NoBound(f"{self.name} {reason}")
        if any(self.setup.weight(client) != weight for client, weight in self._weights.items()):
            return NoBound(f"{self.name} counts by other weights than the clients are entitled to")
        weights = ServiceWeights(prices.input_weight, prices.output_weight)
        return ServiceBound(view, quantum, theorem, weights)

    def balances(self) -> Mapping[str, float]:
        return self.account.balances()
