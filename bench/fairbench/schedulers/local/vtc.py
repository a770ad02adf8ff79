"""Virtual Token Counter ([VTC] Alg. 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.base import LocalScheduler, Read, Selection, Setup, WaitingView
from fairbench.schedulers.decoded import Decoded
from fairbench.schedulers.gpu_charges import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.local.tenant_counters import TenantCounters
from fairbench.schedulers.sharing import SharedCharges, Sharing
from fairbench.tenants import Tenants


class VTC(LocalScheduler):
    """Serves the waiting client with the least service counted; requests of a client in order.

    A client that comes back is lifted: to the counter of the client that left the queue last if
    nobody waits (lines 8-10), else to the least counter among those waiting (lines 11-13).
    """

    name = "vtc"
    shares_counters = True  # with the gateways of other routers, unless there are tenants

    @dataclass(frozen=True)
    class Params:
        """What a counter counts.

        ``charge``: ``extend`` books uncached input tokens ([DLPM] §7.1 needs it), ``input`` the
        whole input ([VTC]), ``gpu-time`` what iterations take, as in ``GPUCharges``. ``lift``:
        ``none`` is the naive form without lines 6-13, for comparison only. ``weights``: another
        spelling of the experiment's own, over which they are laid: a client of weight 2 is entitled
        to twice the service ([VTC] §4.3).
        ``form``: ``artifact`` does what the code behind [VTC]'s figures does: no lift when nobody
        waits, the first output token free, and one token more for every running request in each
        step that ends one ([VTC-artifact]); ``artifact-2023`` is that code before June 2024,
        without those tokens more. They are there to replay that code's records; ``artifact``
        breaks Theorem 4.4. ``sharing``: who pays for a prefix that clients share, as in
        ``SharedCharges``, where ``charge=extend``; by default who computes it. ``tenants``: with
        ``tree`` clients are leaves of the tree that their names spell, and counters are compared
        level by level, as in ``TenantCounters``.
        """

        charge: Literal["extend", "input", "gpu-time"] = "extend"
        lift: Literal["paper", "none"] = "paper"
        sharing: Sharing | None = None
        tenants: Tenants | None = None
        form: Literal["paper", "artifact", "artifact-2023"] = "paper"
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] = field(default_factory=dict)
        input_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        self._counters: dict[str, float] = {}
        self._weights: Mapping[str, float] = params.weights
        self.last_left: str | None = None
        self._turn: dict[str, int] = {}  # when a client was last picked: ties rotate
        self._picks = 0
        self._artifact = params.form != "paper"
        self.refunds_tokens = not self._artifact
        self._charges_at_finish = params.form == "artifact"
        self._first: Counter[str] = Counter()  # first tokens yet to come
        self._running: Counter[str] = Counter()
        self._step_charged = False
        self._shared = None if params.sharing is None else SharedCharges(params.sharing)
        self._tree = TenantCounters(self._counters) if params.tenants else None
        self.shares_counters = self._tree is None
        self.times_steps = self.wants_costs = params.charge == GPU_TIME
        self._time: GPUCharges | None = None
        self._decoded = Decoded(self._counters, params.output_weight)

    @property
    def counters(self) -> dict[str, float]:
        """What each client has been served, over its weight."""
        self._decoded.settle_all()
        return self._counters

    @counters.setter
    def counters(self, kept: dict[str, float]) -> None:
        self._counters = kept
        self._decoded = Decoded(kept, self.params.output_weight)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        if self._tree is not None:
            self._tree.setup = setup
        if self._artifact and self._tree is not None:
            raise UsageError(f"{self.name}.tenants: not with form = {self.params.form!r}")
        if self.times_steps:
            if self._artifact or self._shared is not None:
                raise UsageError(f"{self.name}.charge = {GPU_TIME!r}: not with a form or sharing")
            self._time = gpu_charges(self.name, setup)
        for client in self.params.weights:
            if setup.clients and client not in setup.clients:
                raise unknown_name(f"client in {self.name}.weights", client, setup.clients)
        # Not copied without need: a router's may change while it runs.
        own = self.params.weights
        self._weights = {**setup.weights, **own} if own else setup.weights

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._enter(request, view)

    def _enter(self, request: Request, view: WaitingView) -> None:
        client = request.client
        if self._tree is not None:
            self._tree.enter(client, view.clients(), self.params.lift != "none")
            return
        counters, waiting = self._counters, view.clients()
        counters.setdefault(client, 0)
        if self.params.lift == "none" or client in waiting:
            return
        self._decoded.settle((client,))
        own = counters[client]
        if waiting:
            self._decoded.settle(waiting)
            counters[client] = max(own, min(map(counters.__getitem__, waiting)))
        elif self.last_left is not None and not self._artifact:
            self._decoded.settle((self.last_left,))
            counters[client] = max(own, counters[self.last_left])

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._decoded.settle(view.clients())
        while waiting := view.clients():
            if not (yield view.oldest(self._next(waiting))):
                return

    def _next(self, waiting: Collection[str]) -> str:
        if self._tree is not None:
            return self._tree.least(waiting)
        counters = list(map(self._counters.__getitem__, waiting))
        least = min(counters)
        if counters.count(least) == 1:
            return next(islice(waiting, counters.index(least), None))
        tied = [client for client in waiting if self._counters[client] == least]
        return min(tied, key=lambda client: self._turn.get(client, -1))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        client = request.client
        self.last_left = client
        self._turn[client] = self._picks
        self._picks += 1
        if self._tree is not None:
            self._tree.picked(client)
        if self._artifact:
            self._first[client] += 1
            self._running[client] += 1
        if self._time is not None:
            self._charge(client, self._time.admitted(request, extend_tokens))
        elif not recompute:
            tokens = extend_tokens if self.params.charge == "extend" else request.input_tokens
            self._charge_input(request, tokens)

    def _charge_input(self, request: Request, tokens: int) -> None:
        cost = self._input_cost(request, tokens)
        if self._shared is None or self.params.charge == "input":
            self._charge(request.client, cost)
            return
        for payer, due in self._shared.charges(request, tokens).items():
            self._charge(payer, self.params.input_weight * due)

    def on_tokens(self, client: str, tokens: int) -> None:
        if self._time is not None:
            return
        self._decoded.changed.add(client)
        if self._artifact:
            free = min(self._first[client], tokens)
            self._first[client] -= free
            self._step_charged = False
            tokens -= free
        self._charge(client, self.params.output_weight * tokens)

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        apart = self._time is not None or self._artifact or self._tree is not None
        if apart or type(self).on_tokens is not VTC.on_tokens:
            super().on_steps(steps, running)
        elif self._weights or self._shared is not None:  # fractions, whose sums depend on the order
            counters, each = self._counters, self.params.output_weight * steps
            for client, count in running.items():
                weight = self._weights.get(client, 1)
                counters[client] += each * count if weight == 1 else each * count / weight
        else:
            self._decoded.on_steps(steps, running)

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        if self._time is not None:
            self._charge(request.client, self._time.computed(request, gpu_ps, complete))

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        self._charge(client, gpu_ps)

    def on_finish(self, request: Request) -> None:
        self._decoded.changed.add(request.client)
        self._give_back(request)
        if not self._artifact:
            return
        if self._charges_at_finish and not self._step_charged:
            self._step_charged = True  # those that end in the step are charged too
            for client, running in self._running.items():
                self._charge(client, self.params.output_weight * running)
        self._running[request.client] -= 1

    def on_read(self, request: Request, read: Read) -> None:
        if self._shared is not None:
            return  # others may have paid for it
        cached = read.cached_tokens if self.params.charge == "extend" else 0
        more = read.input_tokens - cached - request.input_tokens
        self._charge(request.client, self.params.input_weight * more)

    def _give_back(self, request: Request) -> None:
        """Of GPU time that was charged ahead."""
        if self._time is not None and (back := self._time.over(request)):
            self._charge(request.client, back)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._decoded.changed.add(request.client)
        self._give_back(request)
        if self._artifact:
            self._running[request.client] -= 1
        self._enter(request, view)

    def _input_cost(self, request: Request, tokens: int) -> float:
        """What admission charges for so many input tokens."""
        return self.params.input_weight * tokens

    def _charge(self, client: str, service: float) -> None:
        if self._tree is not None:
            self._tree.charge(client, service, self._weights)
            return
        weight = self._weights.get(client, 1)
        self._counters[client] += service if weight == 1 else service / weight

    def balances(self) -> Mapping[str, float]:
        return self.counters

    def service_bound(self) -> ServiceBound | NoBound:
        params = self.params
        if self.times_steps:
            return NoBound(f"{self.name} charges GPU time, which service does not count")
        if params.lift == "none" or self._artifact:
            return NoBound(f"{self.name} bounds no service difference in this form")
        if self._shared is not None and params.charge == "extend":
            return NoBound(f"{self.name} charges by sharing, which is not the service of a client")
        if self._weights != self.setup.weights:
            return NoBound(f"{self.name} counts by other weights than the clients are entitled to")
        if self._tree is not None:
            return NoBound(f"{self.name} bounds the difference of siblings among its tenants")
        view = "actual" if params.charge == "extend" else "client"
        weights = ServiceWeights(params.input_weight, params.output_weight)
        return ServiceBound(view, 0, "VTC Theorem 4.4", weights)
