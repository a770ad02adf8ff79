"""Schedulers that charge clients as in [VTC-artifact], the code behind the VTC paper's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.engine import Prices, TokenCharging
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.local.vtc import VTC


class ArtifactCharging(TokenCharging):
    """VTC-artifact's token charging: first tokens are free, and ends of requests cost extra.

    A step that ends a request charges one more token for every running request, including the
    requests that end. [VTC] Theorem 4.4 does not hold for ``ArtifactCharging``, which serves only
    to replay the records of VTC-artifact.
    """

    refunds = False
    charges_at_finish: ClassVar[bool] = True

    def __init__(self, account: Account, prices: Prices, sharing: Sharing | None = None) -> None:
        super().__init__(account, prices, sharing)
        self.no_bound = "bounds no service difference in this form"
        self.step_charged = False
        # ``_first`` counts each client's admitted requests that have no first token yet.
        self._first: Counter[str] = Counter()
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


class EarlyArtifactCharging(ArtifactCharging):
    """The charging of VTC-artifact before June 2024, with no extra charge when a request ends."""

    charges_at_finish = False


class ArtifactForm:
    """VTC and its variants by the code of VTC-artifact, without lifts after an empty queue.

    When a request ends, each running request that is longer than predicted is charged one more
    token ([VTC-artifact], vtc_{oracle,pred_len}_req_queue.py).
    """

    tokens: ClassVar[type[TokenCharging]] = ArtifactCharging
    lifts_alone: ClassVar[bool] = False
    charges_at_finish: ClassVar[bool] = True


class EarlyArtifactForm(ArtifactForm):
    """VTC and its variants, which charge clients as VTC-artifact did before June 2024."""

    tokens: ClassVar[type[TokenCharging]] = EarlyArtifactCharging
    charges_at_finish: ClassVar[bool] = False


S = TypeVar("S", bound=VTC)


def in_form(form: type[ArtifactForm], scheduler: type[S]) -> type[S]:
    """Return a variant of a scheduler (such as VTC) that charges as VTC-artifact does."""
    return type(scheduler.__name__, (form, scheduler), {})
