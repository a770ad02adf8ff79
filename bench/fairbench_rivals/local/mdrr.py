"""Deficit round robin on credit ([VTC] §3); DRR would need output lengths in advance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.charging.engine import Prices
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.schedulers.params import NotNegativeInt, Positive, PositiveInt

POOL_SHARES = 20  # the size of the KV pool over this number is the default quantum
QUANTUM_ANYWHERE = 10_000  # the default quantum in tokens for an unknown pool, as in a gateway


class TurnCredits(Credits):
    """The credits of clients, which get a quantum when their turns begin.

    A ``quantum`` of 0 is a 20th of the KV pool.
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
        # Steps are charged at once, because quanta may be fractions, for which the order of
        # addition matters.
        self.charge_each(each, steps, running)


class MDRR(FairScheduler):
    """Clients take turns; a client is served in its turn while the client is in credit.

    DRR sends a packet only if the credit covers the packet. The length of an output is unknown in
    advance, so a request may overdraw the credit: the input is charged at admission, and each
    output token when it is produced. A turn begins with a quantum only for a client that is not in
    credit. A client with debt after its last request keeps its place until the debt is paid. A
    client whose request does not fit stays first; the next pass skips the client once if the client
    is in debt by then. The rules are those of [VTC-artifact], mdrr_req_queue.py, except that the
    first output token is charged, too.
    """

    name = "mdrr"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``quantum`` is in tokens of service for weight 1; 0 is a 20th of the KV pool.

        ``charge`` is as in VTC: ``extend`` charges uncached input tokens, ``input`` the whole
        input, ``gpu-time`` the time of iterations. ``sharing`` and ``weights`` are as in VTC.
        """

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight")

        quantum: NotNegativeInt = 0
        charge: Literal["extend", "input", "gpu-time"] = "extend"
        input_weight: PositiveInt = 1
        output_weight: PositiveInt = OUTPUT_PRICE
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
        self._turns: dict[str, None] = {}  # clients in the order of their turns
        self._stuck: str | None = None  # the client whose request found no room in the last pass

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
            self._turns[client] = None  # moved behind all other clients

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
