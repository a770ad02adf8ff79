"""Charging by tokens: the prompt at admission, the output as it is produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.charging import Charging
from fairbench.schedulers.sharing import SharedCharges, Sharing
from fairbench.schedulers.views import Read


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of tokens.

    ``input_weight`` and ``output_weight`` are the prices of a prompt token and an output token.
    ``whole_input`` also charges cached prompt tokens ([VTC]); otherwise only computed ones are
    charged. ``recompute`` charges the second prefill of a retracted request.
    """

    input_weight: int = 1
    output_weight: int = 2
    whole_input: bool = False
    recompute: bool = False


class TokenCharging(Charging):
    """Charges tokens by their prices. ``sharing`` divides a prefix among the clients that share it.

    Without ``sharing`` the client that computes a prefix pays for it.
    """

    def __init__(self, account: Account, prices: Prices, sharing: Sharing | None = None) -> None:
        super().__init__(account)
        self.prices = prices
        self._shared = None if sharing is None else SharedCharges(sharing)
        account.shares = sharing is not None
        if sharing is not None and not prices.whole_input:
            self.no_bound = "charges by sharing, which is not the service of a client"
        elif prices.recompute:
            self.no_bound = "bounds no service difference in this form"

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        prices = self.prices
        if recompute and not prices.recompute:
            return
        if prices.whole_input:
            self.account.charge(request.client, prices.input_weight * request.input_tokens)
        elif self._shared is None:
            self.account.charge(request.client, prices.input_weight * extend_tokens)
        else:
            for client, tokens in self._shared.charges(request, extend_tokens).items():
                self.account.charge_absent(client, prices.input_weight * tokens)

    def tokens(self, client: str, tokens: int) -> None:
        self.account.decoded.changed.add(client)
        if tokens < 0:
            self.account.refund(client, self.prices.output_weight * -tokens)
        else:
            self.account.charge(client, self.prices.output_weight * tokens)

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        self.account.charge_steps(self.prices.output_weight, steps, running)

    def retracted(self, request: Request) -> None:
        self.account.decoded.changed.add(request.client)

    def finished(self, request: Request) -> None:
        self.account.decoded.changed.add(request.client)

    def read(self, request: Request, read: Read) -> None:
        if self._shared is not None:
            return  # others may have paid for it
        cached = 0 if self.prices.whole_input else read.cached_tokens
        more = read.input_tokens - cached - request.input_tokens
        self.account.charge(request.client, self.prices.input_weight * more)
