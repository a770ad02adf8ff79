"""Charging as the code behind the VTC paper's figures does it ([VTC-artifact])."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.tokens import Prices, TokenCharging
from fairbench.schedulers.sharing import Sharing


class ArtifactCharging(TokenCharging):
    """The first output token is free, and each step that ends a request costs a token more.

    The token more is charged for every running request, those that end in the step included. The
    code before June 2024 (``charges_at_finish`` is False) did not charge it. There to replay that
    code's records: Theorem 4.4 does not hold.
    """

    def __init__(
        self,
        account: Account,
        prices: Prices,
        sharing: Sharing | None,
        *,
        charges_at_finish: bool,
    ) -> None:
        super().__init__(account, prices, sharing)
        self.charges_at_finish = charges_at_finish
        self.step_charged = False
        self._first: Counter[str] = Counter()  # first tokens yet to come
        self._running: Counter[str] = Counter()

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._first[request.client] += 1
        self._running[request.client] += 1
        super().admitted(request, extend_tokens, recompute)

    def tokens(self, client: str, tokens: int) -> None:
        free = min(self._first[client], tokens)
        self._first[client] -= free
        self.step_charged = False
        super().tokens(client, tokens - free)

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        for client, requests in running.items():
            self.tokens(client, steps * requests)

    def finished(self, request: Request) -> None:
        super().finished(request)
        if self.charges_at_finish and not self.step_charged:
            self.step_charged = True
            for client, running in self._running.items():
                self.account.charge(client, self.prices.output_weight * running)
        self._running[request.client] -= 1

    def retracted(self, request: Request) -> None:
        super().retracted(request)
        self._running[request.client] -= 1
