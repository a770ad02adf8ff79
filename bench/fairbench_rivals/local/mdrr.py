"""Deficit round robin on credit, because DRR itself needs output lengths in advance ([VTC] §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.charging.tokens import Prices
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.schedulers.params import NotNegativeInt, Positive, PositiveInt
from fairbench.schedulers.sharing import Sharing

POOL_SHARES = 20  # divisor of the KV pool that gives a quantum
QUANTUM_ANYWHERE = 10_000  # the quantum if the pool is unknown, as at a gateway


class TurnCredits(Credits):
    """The credits of clients. A client is granted a quantum when its turn begins.

    A ``quantum`` of 0 is a 20th of the pool.
    """

    def quantum_of(self, client: str) -> float:
        pool = self.setup.pool_tokens
        usual = pool / POOL_SHARES if pool else QUANTUM_ANYWHERE
        quantum = (self.quantum or usual) * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def begin_turn(self, client: str) -> None:
        """Grant a quantum to a client that is not in credit."""
        if self.of[client] <= 0:
            self.of[client] += self.quantum_of(client)

    def charge_absent(self, client: str, amount: float) -> None:
        self.of[client] = self.of.get(client, 0) - amount

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        # All quanta are added at once, because they may be fractions, for which the order of
        # addition matters.
        self.charge_each(each, steps, running)


class MDRR(FairScheduler):
    """Clients take turns; in its turn, a client is served while it is in credit.

    DRR asks before each packet whether the quantum covers it. An output's length is unknown in
    advance, so here a request may overdraw: its input is charged at admission and each output token
    when it is produced, and a turn begins with another quantum only for a client that is not in
    credit. A client with debt after its last request keeps its place until the debt is paid. A
    client whose request does not fit stays first; if it is in debt by the next pass, it is passed
    over once. ([VTC-artifact], mdrr_req_queue.py, except that every output token is charged,
    including the first.)
    """

    name = "mdrr"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``quantum`` is in tokens of service for weight 1; 0 is a 20th of the KV pool.

        ``charge`` is as in VTC: ``extend`` charges uncached input tokens, ``input`` the whole
        input, ``gpu-time`` the time of iterations. ``sharing`` and ``weights`` are as in VTC.
        """

        quantum: NotNegativeInt = 0
        charge: Literal["extend", "input", "gpu-time"] = "extend"
        input_weight: PositiveInt = 1
        output_weight: PositiveInt = 2
        sharing: Sharing | None = None
        weights: dict[str, Positive] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self.credits = TurnCredits(params.quantum, params.output_weight)
        prices = Prices(
            params.input_weight, params.output_weight, whole_input=params.charge == "input"
        )
        self.compose(self.credits, params, prices)
        self.credit = self.credits.of
        self._turns: dict[str, None] = {}  # the clients that have turns, in order
        self._stuck: str | None = None  # the last client whose request did not fit

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.credit.setdefault(request.client, 0)
        self._turns.setdefault(request.client)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_retract(request, view, now_s)
        self._turns.setdefault(request.client)

    def forget(self, client: str) -> None:
        super().forget(client)
        self._turns.pop(client, None)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while self._turns:
            client = next(iter(self._turns))
            if client == self._stuck and self.credit[client] < 0:
                self._stuck = None
            else:
                self.credits.begin_turn(client)
                while self.credit[client] > 0 and client in view.clients():
                    if not (yield view.oldest(client)):
                        self._stuck = client
                        return
            self._end_turn(client, waits=client in view.clients())

    def _end_turn(self, client: str, *, waits: bool) -> None:
        del self._turns[client]
        if waits or self.credit[client] < 0:
            self._turns[client] = None  # added again, behind all others

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
