"""Charging as in the code behind the figures of the VTC paper ([VTC-artifact])."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.gpu_time import GPU_TIME
from fairbench.schedulers.charging.tokens import Prices, TokenCharging
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.sharing import Sharing


class ArtifactCharging(TokenCharging):
    """Charging with a free first token, and one more token for each step that ends a request.

    Each step charges one more token to every running request, including requests that end in the
    step. Theorem 4.4 does not hold for this form, which is only for replaying the artifact's
    records.
    """

    refunds = False
    charges_at_finish: ClassVar[bool] = True

    def __init__(self, account: Account, prices: Prices, sharing: Sharing | None = None) -> None:
        super().__init__(account, prices, sharing)
        self.no_bound = "bounds no service difference in this form"
        self.step_charged = False
        self._first: Counter[str] = Counter()  # requests whose first token is yet to come
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
    """The charging of that code before June 2024, without the additional token."""

    charges_at_finish = False


FORMS = {"artifact": ArtifactCharging, "artifact-2023": EarlyArtifactCharging}


def charging_form(name: str, params: VTC.Params) -> type[TokenCharging]:
    """Return the form in which ``params`` charge tokens.

    Raises UsageError, which names the scheduler, for a setting that the artifact's code lacks.
    """
    if params.tenants is not None:
        raise UsageError(f"{name}.tenants: cannot be combined with form = {params.form!r}")
    if params.charge == GPU_TIME:
        raise UsageError(
            f"{name}.charge = {GPU_TIME!r}: cannot be combined with {name}.form or {name}.sharing"
        )
    return FORMS[params.form]
