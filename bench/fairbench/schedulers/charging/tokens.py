"""The interface of charging, and the charging by tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.sharing import SharedCharges, Sharing
from fairbench.schedulers.views import Read


class Charging:
    """Turns engine events into ``account.charge(client, amount)``.

    By default, events cost nothing.
    """

    refunds: ClassVar[bool] = True  # refunds outputs that were charged in advance and did not come
    no_bound = ""  # why no theorem bounds the charged service, such as "charges ..."

    def __init__(self, account: Account) -> None:
        self.account = account

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts of the experiment. Raises UsageError naming the scheduler."""

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Charge a request for its uncached prompt; ``recompute`` marks a retracted request."""

    def tokens(self, client: str, tokens: int) -> None:
        """Charge output tokens; a negative number is a refund."""

    def request_tokens(self, request: Request, tokens: int) -> None:
        """Charge output tokens of a request, for schedulers that count them by request."""

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch."""

    def prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """Charge an iteration's time on a part of a prompt; ``complete`` marks the last part."""

    def gpu_time(self, client: str, gpu_ps: int) -> None:
        """Charge the time of decode steps."""

    def read(self, request: Request, read: Read) -> None:
        """Charge the difference between the prompt as charged and the prompt as read."""

    def retracted(self, request: Request) -> None:
        """Refund the amount charged in advance for a request that has lost its memory."""

    def finished(self, request: Request) -> None:
        """Refund the unused amount charged in advance for a request that has ended."""

    def forget(self, client: str) -> None:
        """Forget the state of a client without requests."""


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
        self.account.running_changed(client)
        if tokens < 0:
            self.account.refund(client, self.prices.output_weight * -tokens)
        else:
            self.account.charge(client, self.prices.output_weight * tokens)

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        self.account.charge_steps(self.prices.output_weight, steps, running)

    def retracted(self, request: Request) -> None:
        self.account.running_changed(request.client)

    def finished(self, request: Request) -> None:
        self.account.running_changed(request.client)

    def read(self, request: Request, read: Read) -> None:
        if self._shared is not None:
            return  # other clients may have paid for it
        cached = 0 if self.prices.whole_input else read.cached_tokens
        more = read.input_tokens - cached - request.input_tokens
        self.account.charge(request.client, self.prices.input_weight * more)
