"""Deficit round robin on credit: [VTC] §3 says why DRR itself cannot be, its code what can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import LocalScheduler, Read, Selection, WaitingView

POOL_SHARES = 20  # a quantum is the KV pool over this
QUANTUM_ANYWHERE = 10_000  # where the pool is not known, as at a gateway


class MDRR(LocalScheduler):
    """Clients take turns; in its turn a client sends requests as long as it is in credit.

    DRR asks before each packet whether the quantum covers it. An output's length is not known
    before, so here a request may overdraw: its input is charged at admission, each output token
    when it is made, and a turn begins with another quantum only for a client that is not in
    credit. Whoever owes after its last request keeps its place until that is paid. A client whose
    request does not fit stays first; if by the next pass it has come into debt, it is passed over
    once. ([VTC-artifact], mdrr_req_queue.py, but that every output token is charged, the first
    one too.)
    """

    name = "mdrr"
    refunds_tokens = True

    @dataclass(frozen=True)
    class Params:
        """``quantum`` in tokens of service, of a client of weight 1; 0 is a 20th of the KV pool.

        ``charge`` as in VTC: ``extend`` books uncached input tokens, ``input`` the whole input.
        """

        quantum: Annotated[int, Ge(0)] = 0
        charge: Literal["extend", "input"] = "extend"
        input_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        self.credit: dict[str, float] = {}
        self._turns: dict[str, None] = {}  # whose turn it is, in order
        self._stuck: str | None = None  # the last whose request did not fit

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.credit.setdefault(request.client, 0)
        self._turns.setdefault(request.client)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._turns.setdefault(request.client)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while self._turns:
            client = next(iter(self._turns))
            if client == self._stuck and self.credit[client] < 0:
                self._stuck = None
            else:
                if self.credit[client] <= 0:
                    self.credit[client] += self._quantum(client)
                while self.credit[client] > 0 and client in view.clients():
                    if not (yield view.oldest(client)):
                        self._stuck = client
                        return
            self._end_turn(client, waits=client in view.clients())

    def _end_turn(self, client: str, *, waits: bool) -> None:
        del self._turns[client]
        if waits or self.credit[client] < 0:
            self._turns[client] = None  # again, behind all others

    def _quantum(self, client: str) -> float:
        pool = self.setup.pool_tokens
        usual = pool / POOL_SHARES if pool else QUANTUM_ANYWHERE
        return (self.params.quantum or usual) * self.setup.weight(client)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        if not recompute:
            tokens = extend_tokens if self.params.charge == "extend" else request.input_tokens
            self.credit[request.client] -= self.params.input_weight * tokens

    def on_read(self, request: Request, read: Read) -> None:
        cached = read.cached_tokens if self.params.charge == "extend" else 0
        more = read.input_tokens - cached - request.input_tokens
        self.credit[request.client] -= self.params.input_weight * more

    def on_tokens(self, client: str, tokens: int) -> None:
        credit = self.credit[client]
        self.credit[client] -= self.params.output_weight * tokens
        if tokens < 0:  # quanta were granted for what has not come: they are not to add up
            most = max(credit, self._quantum(client))
            self.credit[client] = min(self.credit[client], most)

    def balances(self) -> Mapping[str, float]:
        return self.credit

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
