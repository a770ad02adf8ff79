"""A fair scheduler: an order, made of an account and a charging.

The *account* knows what each client was given, the *charging* what an event costs. A policy decides
whose request goes next, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.base import LocalScheduler, Read, Setup, WaitingView
from fairbench.schedulers.charging.charging import Charging
from fairbench.schedulers.charging.gpu_time import TimeCharging
from fairbench.schedulers.charging.tokens import Prices, TokenCharging
from fairbench.schedulers.sharing import Sharing


class FairScheduler(LocalScheduler):
    """Pass what happens on to the charging; subclasses give both parts to ``_compose``."""

    refunds_tokens = True
    account: Account
    charging: Charging

    def _compose(self, account: Account, charging: Charging) -> None:
        self.account, self.charging = account, charging
        if isinstance(charging, TimeCharging):
            self.times_steps = self.wants_costs = True

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.account.prepare(setup)
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

    def on_finish(self, request: Request) -> None:
        self.charging.finished(request)

    def balances(self) -> Mapping[str, float]:
        return self.account.balances()


def charging_of(
    account: Account, prices: Prices, sharing: Sharing | None, *, by_time: bool
) -> Charging:
    """Return the charging of a scheduler's parameters.

    Args:
        account: Whose balances are charged.
        prices: What a token costs.
        sharing: Who pays for a prefix that several clients share; None is who computes it.
        by_time: Whether GPU time is charged in place of tokens.
    """
    return TimeCharging(account) if by_time else TokenCharging(account, prices, sharing)
