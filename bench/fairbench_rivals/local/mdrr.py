"""Deficit round robin ([VTC] §3) with debts of clients, because output lengths are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound
from fairbench.schedulers.accounts.deficit_credits import Credits
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.charging.engine import Prices
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.local.fair import FairScheduler
from fairbench.schedulers.params import NotNegativeInt, Positive, PositiveInt

# The default quantum is the size of the KV pool divided by ``POOL_SHARES``.
POOL_SHARES = 20
# default quantum in tokens if the size of the KV pool is unknown, as in a gateway
QUANTUM_ANYWHERE = 10_000


class TurnCredits(Credits):
    """The credits of clients, each of which gets a quantum when its turn begins.

    A ``quantum`` of 0 means a 20th of the KV pool.
    """

    def quantum_of(self, client: str) -> float:
        pool = self.setup.pool_tokens
        usual = pool / POOL_SHARES if pool else QUANTUM_ANYWHERE
        quantum = (self.quantum or usual) * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def begin_turn(self, client: str) -> None:
        """Grant a quantum to a client that has no positive credit."""
        if self.of[client] <= 0:
            self.of[client] += self.quantum_of(client)

    def charge_absent(self, client: str, amount: float) -> None:
        self.of[client] = self.of.get(client, 0) - amount

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        # Each decode step is charged separately. Quanta may be fractions, and the order of adding
        # fractions changes their sum.
        self.charge_each(each, steps, running)


class MDRR(FairScheduler):
    """A scheduler in which clients take turns; a turn lasts while the client has positive credit.

    In networks, DRR (deficit round robin) sends a packet only if the credit covers its length. The
    length of an output is unknown in advance, so a request under MDRR may overdraw the credit. The
    input is charged at admission, and each output token when it is produced. At the start of its
    turn, a client gets a quantum unless its credit is positive. A client without requests still
    takes turns while its credit is negative. A client whose request does not fit into memory keeps
    its turn, unless its credit is negative in the next pass. The rules follow mdrr_req_queue.py of
    [VTC-artifact], except that the first output token is also charged.
    """

    name = "mdrr"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``quantum`` is in tokens, for weight 1; 0 means a 20th of the KV pool.

        ``charge``, ``sharing`` and ``weights`` have the same meaning as in VTC. ``extend`` charges
        uncached input tokens, ``input`` charges all input tokens, and ``gpu-time`` charges GPU
        time.
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
        # the waiting clients, in the order of their turns
        self._turns: dict[str, None] = {}
        # the client whose request did not fit into memory in the last pass, or None
        self._stuck: str | None = None

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
            del self._turns[client]
            if client in view.clients() or self.credit[client] < 0:
                self._turns[client] = None  # the client goes behind all other clients

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
