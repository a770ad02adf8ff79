"""The router D2LPM ([DLPM] Alg. 2), which follows cached prefixes while clients have credit."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import OUTPUT_PRICE, Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.engine import GPU_TIME
from fairbench.schedulers.location_tree import MAX_NODES, BoundedTree
from fairbench.schedulers.parts.fleet import Filling
from fairbench.schedulers.parts.worker_credits import (
    Charge,
    CreditExchange,
    WorkerCredit,
    WorkerCredits,
    dispatch_charging,
)
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.tenants import Tenants


class D2LPM(CreditExchange, PrefixRouter):
    """A router that prefers the worker with the longest cached prefix while the client has credit.

    Each client has a separate credit at each worker. Among the workers at which the client has
    positive credit, the router prefers the worker with the longest cached prefix. If several
    workers have equally long prefixes, the router takes the worker with the fewest requests in
    flight; ties rotate. A client without credit at any worker gets quanta until it has positive
    credit at some worker. ``route`` implements stream 1 of Algorithm 2, ``on_finish`` implements
    stream 2, and ``PrefixRouter.on_evict`` implements stream 3 (lines 24 to 27).
    """

    name = "d2lpm"
    cluster_theorems = MappingProxyType({"DLPM Theorem 4.1": "D2LPM Theorem 5.1"})
    served_params = MappingProxyType({"fill_below": 2})

    @dataclass(frozen=True)
    class Params:
        """Parameters of credits, charging and the prefix tree.

        ``worker_quantum`` is the quantum Q^w of [DLPM] in weighted tokens, for a client of weight
        1. If the quantum is only a few times the mean cost of a request, a client's credit at a
        worker lasts for a few requests only. See ``dispatch_charging`` for the parameters
        ``charge`` and ``outputs``. Prefix matches of fewer than ``min_match_tokens`` tokens, such
        as a system prompt that all clients share, are ignored. With ``insert_on_finish``, a
        finished request's prompt and output are added to the prefix tree, so that the next turn of
        a conversation matches. Algorithm 2 of [DLPM] adds only prompts to the tree (line 18).
        ``tenants=tree`` keeps credits at every level of ``org/team/user``. ``max_tree_nodes`` is
        the maximum size of the prefix tree in nodes, a million by default. ``weights`` of clients
        override the experiment's weights. See ``Filling`` for ``fill_below``; None and 0 turn
        filling off.
        """

        constants: ClassVar[tuple[str, ...]] = ("extend_weight",)

        worker_quantum: Annotated[int, Gt(0)] = 40_000
        charge: Charge = "input"
        min_match_tokens: Annotated[int, Ge(0)] = 0
        insert_on_finish: bool = False
        tenants: Tenants | None = None
        max_tree_nodes: Annotated[int, Ge(1)] | None = None
        outputs: Literal["ahead"] | None = None
        fill_below: Annotated[int, Ge(0)] | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = OUTPUT_PRICE
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        super().__init__(workers)
        self._filling = Filling(self._fleet, params.fill_below) if params.fill_below else None
        self._tree = BoundedTree(params.max_tree_nodes or MAX_NODES)
        self.credits = WorkerCredits(params.worker_quantum, self._fleet, params.tenants)
        prices = params.extend_weight, params.output_weight
        self._charging = dispatch_charging(*prices, params.charge, ahead=bool(params.outputs))
        self.credits.payers, self.credits.on_forget = self._charging.payers, self._charging.forget
        self._settle = self.credits.charge_end_capped if params.outputs else self.credits.charge_end

    @property
    def credit(self) -> dict[str, WorkerCredit]:
        """The credits q_{i,w} of each client or tenant i at each live worker w."""
        return self.credits.of

    def balance(self, client: str) -> float | None:
        """Return the sum of a client's credits over the workers."""
        credit = self.credit.get(client)
        return None if credit is None else sum(credit.values())

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))
        self.credits.setup = self.setup
        self._charging.prepare(self.name, setup)
        self.credits.unit_of_time = self._charging.token_ps

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        available = self.credits.available(request.client)  # [DLPM] Alg. 2 lines 4-6
        length, holders = self._tree.holders(found.node)  # [DLPM] Alg. 2 line 13
        preferred = available & holders if length >= self.params.min_match_tokens else 0
        worker = self._fleet.least_loaded(preferred or available)  # [DLPM] Alg. 2 lines 7-8 and 14
        if self._filling is not None:
            worker = self._filling.instead_of(worker, available)
        tokens = request.input_tokens
        if self.params.charge != "input":
            # Engines compute at least one token of a cached prompt.
            tokens = max(1, tokens - self._tree.cached_tokens(found.node).get(worker, 0))
        for client, cost in self._charging.dispatched(request, tokens, worker).items():
            self.credits.charge(client, worker, cost)  # [DLPM] Alg. 2 line 16
        self._tree.add(found, request.prompt, worker)  # [DLPM] Alg. 2 line 18
        self._fleet.dispatch(request, worker)  # [DLPM] Alg. 2 lines 15 and 17
        return worker

    @property
    def wants_gpu_time(self) -> bool:
        return self.params.charge == GPU_TIME

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self._charging.record_time(request, gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        cost = self._charging.end_charge(request, output.length)
        if not self._fleet.end_request(request, worker):  # [DLPM] Alg. 2 line 23
            return
        self._charging.answered(request.client, output.length)
        self._settle(request.client, worker, cost)  # [DLPM] Alg. 2 line 22
        if self.params.insert_on_finish and output.length:
            self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        paid = self._charging.failed(request)
        if self._fleet.end_request(request, worker):
            for client, cost in paid.items():
                self.credits.refund_dispatch(client, worker, cost)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self.credits.add_worker(worker, with_quantum=self._filling is not None)

    def on_worker_left(self, worker: int) -> None:
        self._charging.forget_worker(worker)
        self.credits.remove_worker(worker)
