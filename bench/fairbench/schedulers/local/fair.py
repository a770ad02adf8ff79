"""Fair schedulers by composition of an order, an account and a charging.

The *account* records each client's service, the *charging* sets the cost of an event. A policy
decides which client's request goes next, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fairbench.core import NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.base import LocalScheduler, Read, RunningView, Setup, WaitingView
from fairbench.schedulers.charging.gpu_time import GPU_TIME, TimeCharging
from fairbench.schedulers.charging.tokens import Charging, Prices, TokenCharging
from fairbench.schedulers.params import Positive, PositiveInt
from fairbench.schedulers.sharing import Sharing
from fairbench.tenants import Tenants


@dataclass(frozen=True)
class FairParams:
    """The parameters of charging and accounts. Schedulers derive their parameters from this class.

    ``charge``: ``gpu-time`` charges the time of iterations instead of tokens. ``sharing``: the
    clients that pay for a shared prefix; the client that computes it by default. ``tenants``:
    ``tree`` shares between tenants first. ``weights`` override those of the experiment.
    """

    charge: Literal["gpu-time"] | None = None
    sharing: Sharing | None = None
    tenants: Tenants | None = None
    weights: dict[str, Positive] | None = None
    input_weight: PositiveInt = 1
    output_weight: PositiveInt = 2


class ChargingParams(Protocol):
    """The parameters that select a charging."""

    @property
    def charge(self) -> str | None: ...
    @property
    def sharing(self) -> Sharing | None: ...
    @property
    def weights(self) -> Mapping[str, float] | None: ...


class FairScheduler(LocalScheduler):
    """A scheduler that charges through its parts, which subclasses pass to ``compose``."""

    account: Account
    charging: Charging
    _weights: Mapping[str, float]

    def _compose(
        self, account: Account, charging: Charging, weights: Mapping[str, float] | None = None
    ) -> None:
        """Set both parts; ``weights`` override the clients' weights in the experiment."""
        self.account, self.charging, self._weights = account, charging, weights or {}
        self.refunds_tokens = charging.refunds
        self.account.prepare(self.setup.weighted("weights", weights))
        if isinstance(charging, TimeCharging):
            self.times_steps = self.wants_costs = True

    def compose(
        self,
        account: Account,
        params: ChargingParams,
        prices: Prices | None = None,
        tokens: type[TokenCharging] = TokenCharging,
    ) -> None:
        """Set an account and the charging that the parameters select.

        ``prices`` are by default those of ``FairParams``, ``tokens`` is the form of their charging.
        Raises UsageError if GPU time is to be charged with ``sharing``.
        """
        if prices is None:
            assert isinstance(params, FairParams)
            prices = Prices(params.input_weight, params.output_weight)
        charging: Charging
        if params.charge != GPU_TIME:
            charging = tokens(account, prices, params.sharing)
        elif params.sharing is None:
            charging = TimeCharging(account)
        else:
            raise UsageError(
                f"{self.name}.charge = {GPU_TIME!r}: cannot be combined with {self.name}.sharing"
            )
        self._compose(account, charging, params.weights)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.account.prepare(setup.weighted(f"{self.name}.weights", self._weights))
        self.charging.prepare(self.name, setup)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.charging.admitted(request, extend_tokens, recompute)

    def on_tokens(self, client: str, tokens: int) -> None:
        self.charging.tokens(client, tokens)

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        if type(self).on_tokens is FairScheduler.on_tokens:
            self.charging.steps(steps, running)
        else:
            super().on_steps(steps, running)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self.charging.request_tokens(request, tokens)

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        self.charging.prompt_time(request, gpu_ps, complete)

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        self.charging.gpu_time(client, gpu_ps)

    def on_read(self, request: Request, read: Read) -> None:
        self.charging.read(request, read)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.charging.retracted(request)

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Order running requests by how far their clients are ahead, each client's newest first.

        Only ``preempt=fair`` asks for this order.
        """
        newest = [one.request for one in running][::-1]
        ahead = {client: self.account.ahead(client) for client in {r.client for r in newest}}
        return sorted(newest, key=lambda request: ahead[request.client], reverse=True)

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)

    def forget(self, client: str) -> None:
        self.account.forget(client)
        self.charging.forget(client)

    def _bound(
        self, view: Literal["actual", "client"], quantum: int, theorem: str, prices: Prices
    ) -> ServiceBound | NoBound:
        """Return a theorem's bound, or none if it does not hold for these parts."""
        if reason := self.charging.no_bound or self.account.no_bound:
            return NoBound(f"{self.name} {reason}")
        if any(self.setup.weight(client) != weight for client, weight in self._weights.items()):
            return NoBound(f"{self.name} counts by other weights than the clients are entitled to")
        weights = ServiceWeights(prices.input_weight, prices.output_weight)
        return ServiceBound(view, quantum, theorem, weights)

    def balances(self) -> Mapping[str, float]:
        return self.account.balances()
