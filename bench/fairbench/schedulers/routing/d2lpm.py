"""Double Deficit LPM: locality until a client's credit at a worker is used up ([DLPM] Alg. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import Request, Segment
from fairbench.schedulers.accounts.tenant_trees import WORKER_CREDITS
from fairbench.schedulers.accounts.worker_credits import WorkerCredit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.dispatch import Charge, dispatch_charging
from fairbench.schedulers.charging.gpu_time import GPU_TIME
from fairbench.schedulers.location_tree import MAX_NODES, BoundedTree, RecentNode
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.schedulers.routing.credit_exchange import CreditExchange
from fairbench.schedulers.routing.filling import Filling
from fairbench.tenants import Tenants


class D2LPM(CreditExchange, PrefixRouter):
    """A router that follows the longest prefix while the client has credit at that worker.

    Each client has a credit at each worker. Among the workers where the client is in credit, the
    router prefers those that hold the longest match. Then the shortest queue wins, with ties in
    rotation. A client out of credit at every worker gets quanta until the client is in credit
    somewhere. ``route`` is stream 1 of Algorithm 2, ``on_finish`` stream 2. Stream 3
    (lines 24 to 27) is ``PrefixRouter.on_evict``.
    """

    name = "d2lpm"
    cluster_theorems = MappingProxyType({"DLPM Theorem 4.1": "D2LPM Theorem 5.1"})
    served_params = MappingProxyType({"fill_below": 2})

    @dataclass(frozen=True)
    class Params:
        """Parameters of the credits, the charging and the tree.

        ``worker_quantum`` is Q^w of a client of weight 1, in service units; a client of weight 2
        gets twice as much. If the quantum is only a few mean request costs, clients leave their
        prefix at every request. ``charge`` and ``outputs``: as in ``dispatch_charging``.
        ``min_match_tokens``: shorter matches are ignored, such as a system prompt that all clients
        share. ``insert_on_finish`` inserts prompt and output when a request ends, so that a
        follow-up turn matches both; Algorithm 2 inserts prompts only (line 18). ``tenants``:
        ``tree`` keeps credits at every level of ``org/team/user``. ``max_tree_nodes`` is the number
        of stretches of prompts whose holders are remembered, a million by default. ``weights`` of
        clients override the experiment's. ``fill_below``: see ``Filling``; None or 0 is Algorithm 2
        as published.
        """

        worker_quantum: Annotated[int, Gt(0)] = 40_000
        charge: Charge = "input"
        min_match_tokens: Annotated[int, Ge(0)] = 0
        insert_on_finish: bool = False
        tenants: Tenants | None = None
        max_tree_nodes: Annotated[int, Ge(1)] | None = None
        outputs: Literal["ahead"] | None = None
        fill_below: Annotated[int, Ge(0)] | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        super().__init__(workers)
        self._filling = Filling(self._fleet, params.fill_below) if params.fill_below else None
        self._tree = BoundedTree(params.max_tree_nodes or MAX_NODES)
        self.credits = WORKER_CREDITS[params.tenants](params.worker_quantum, self._fleet)
        prices = params.extend_weight, params.output_weight
        self._charging = dispatch_charging(*prices, params.charge, ahead=bool(params.outputs))
        self.credits.payers, self.credits.on_forget = self._charging.payers, self._charging.forget
        self._settle = self.credits.settle_down if params.outputs else self.credits.settle

    @property
    def credit(self) -> dict[str, WorkerCredit]:
        """The credits q_{i,w}: client (or tenant) -> live worker -> credit."""
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
        available = self.credits.available(request.client)  # lines 4-6
        worker = self._select(available, self._preferred(found.node))  # lines 13-14
        tokens = self._charged_tokens(request, found.node, worker)
        for client, cost in self._charging.dispatched(request, tokens, worker).items():
            self.credits.charge(client, worker, cost)  # line 16
        self._tree.add(found, request.prompt, worker)  # line 18
        self._fleet.dispatch(request, worker)  # lines 15 and 17
        return worker

    def _select(self, available: int, preferred: int) -> int:
        """Run SELECTWORKER (lines 7-8), then fill an idle worker, if filling is on."""
        worker = self._fleet.least_loaded(available & preferred or available)
        return worker if self._filling is None else self._filling.instead_of(worker, available)

    def _preferred(self, node: RecentNode) -> int:
        """Return the set G of line 13 as bits: the workers with the longest match."""
        tokens, workers = self._tree.holders(node)
        return workers if tokens >= self.params.min_match_tokens else 0

    def _charged_tokens(self, request: Request, node: RecentNode, worker: int) -> int:
        """Return the charged tokens of the prompt; the engine computes at least one token."""
        if self.params.charge == "input":
            return request.input_tokens
        return max(1, request.input_tokens - self._tree.cached_tokens(node).get(worker, 0))

    @property
    def wants_gpu_time(self) -> bool:
        return self.params.charge == GPU_TIME

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self._charging.took(request, gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        cost = self._charging.finished(request, output.length)
        if not self._fleet.finish(request, worker):  # line 23
            return
        self._charging.answered(request.client, output.length)
        self._settle(request.client, worker, cost)  # line 22
        if self.params.insert_on_finish and output.length:
            self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        paid = self._charging.failed(request)
        if self._fleet.finish(request, worker):
            for client, cost in paid.items():
                self.credits.give_back(client, worker, cost)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self.credits.join(worker, with_quantum=self._filling is not None)

    def left(self, worker: int) -> None:
        self._charging.left(worker)
        self.credits.leave(worker)
