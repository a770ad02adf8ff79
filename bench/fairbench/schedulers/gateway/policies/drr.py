"""Deficit round robin before the cluster (Shreedhar and Varghese 1996)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import Read, Setup, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.gateway.price import PriceParams


class DRR(FlowPolicy):
    """Clients take turns; a turn grants a quantum, and requests go while it lasts.

    A client that has nothing left to send gives up what is left of its credit, and keeps a debt.
    Nobody starves: while two clients wait, what they have paid differs, over their weights, by less
    than a quantum and the price of the dearest request of each, if prices are not corrected. What
    is paid is a price (``PriceParams``), not what the cluster does. InferGrid's "deficit round
    robin" is another rule, ``infergrid-drr``.
    """

    name = "drr"

    @dataclass(frozen=True)
    class Params(PriceParams):
        """The parameters of deficit round robin. They extend those of ``PriceParams``.

        ``quantum`` is the number of tokens that a turn grants a client of weight 1. ``weights``
        override the experiment's weights for the clients that they name.
        """

        quantum: Annotated[FiniteFloat, Gt(0)] = 2_000.0
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self.deficits: dict[str, float] = {}
        self._rotation: list[str] = []  # the clients that wait, whose turn comes next first
        self._turn: str | None = None  # whose it is now; the first of the rotation, if anybody's
        self._waiting: Collection[str] = ()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        client, self._waiting = request.client, view.clients()
        if client not in self._waiting:
            self._leave(client)  # its last request was withdrawn
            self._rotation.append(client)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        for client in [one for one in self._rotation if one not in self._waiting]:
            self._leave(client)
        if self._turn is not None:
            if self.deficits[self._turn] >= self.params.of(view.oldest(self._turn)):
                return self._turn
            self._rotation.append(self._rotation.pop(0))
        self._turn = self._next_turn(view)
        return self._turn

    def _next_turn(self, view: WaitingView) -> str:
        """Give quanta in rotation until a client can pay, computed in one step.

        Until then each turn has been granted a quantum, and has passed.
        """
        rounds = {client: self._rounds(client, view) for client in self._rotation}
        least = min(rounds.values())
        first = next(index for index, one in enumerate(self._rotation) if rounds[one] == least)
        for index, client in enumerate(self._rotation):
            self.deficits[client] += (least - (index > first)) * self._quantum(client)
        self._rotation = self._rotation[first:] + self._rotation[:first]
        return self._rotation[0]

    def _rounds(self, client: str, view: WaitingView) -> int:
        missing = self.params.of(view.oldest(client)) - self.deficits[client]
        return max(1, ceil(missing / self._quantum(client)))

    def _leave(self, client: str) -> None:
        self.deficits[client] = min(0.0, self.deficits.get(client, 0.0))
        if client in self._rotation:
            self._rotation.remove(client)
        if client == self._turn:
            self._turn = None

    def _quantum(self, client: str) -> float:
        return self.params.quantum * self.setup.weight(client)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.deficits[request.client] -= self.params.of(request)
        if request.client not in self._waiting:
            self._leave(request.client)

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        self.deficits[request.client] -= self.params.correction(request, read, output_tokens)

    def forget(self, client: str) -> None:
        if client not in self._rotation:
            self.deficits.pop(client, None)

    def balances(self) -> Mapping[str, float]:
        return self.deficits
