"""The router fair-finish keeps locality unless a request would end much sooner elsewhere.

The router estimates when a request would end at each worker if clients shared the worker fairly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.location_tree import MAX_NODES, BoundedTree, Holders
from fairbench.schedulers.output_lengths import OutputLengths
from fairbench.schedulers.parts.finishes import Backlogs, Costs, Finishes, RequestWork
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.tenants import Tenants

SLACK = 100.0
NOBODY = Holders(0, 0)


class FairFinish(PrefixRouter):
    """A router that compares the estimated ends of a request at all workers.

    A request's estimated end at a worker (``WorkerBacklog.finish_of_more``) is the sum of the
    request's work, its client's backlog at the worker, and the work of other clients that fair
    sharing serves first. Among the workers with the longest cached prefix, the router chooses the
    worker at which the request would end first. A worker with a shorter cached prefix is chosen
    only if the request would end earlier there by more than ``slack`` times the prefill time of the
    longest cached prefix. Long cached prefixes therefore attract requests more than short ones.
    Ties rotate. A request's work (``RequestWork``) includes its expected output, which is the mean
    output of its client's finished requests. No bound on service gaps is proved for the whole
    cluster, but the bounds of the workers' local schedulers hold at each worker. In a large fleet,
    only a few workers are examined (``Finishes``).
    """

    name = "fair-finish"

    @dataclass(frozen=True)
    class Params:
        """Parameters of fair-finish.

        A worker without the longest cached prefix is chosen only if this brings the estimated
        finish forward by more than ``slack`` times the prefix's prefill time.

        If ``slack`` is 0, the earliest estimated finish always decides; if ``slack`` is inf, the
        longest cached prefix decides. With ``tenants=tree``, siblings share fairly at every level
        of ``org/team/user``. ``length_factor`` multiplies the expected output lengths, to measure
        the effect of wrong predictions. The parameters ``max_tree_nodes`` and ``weights`` are
        explained in ``D2LPM``.
        """

        slack: Annotated[float, Ge(0)] = SLACK
        tenants: Tenants | None = None
        length_factor: Annotated[float, Gt(0), Le(1000)] | None = None
        max_tree_nodes: Annotated[int, Ge(1)] | None = None
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        super().__init__(workers)
        self._tree = BoundedTree(params.max_tree_nodes or MAX_NODES)
        self._lengths = OutputLengths()
        self._work = RequestWork()
        lineage = None if params.tenants is None else self._lineage
        self._backlogs = Backlogs(self._fleet.workers, self._weight, lineage)

    def _weight(self, node: str) -> float:
        return self.setup.weight(node)

    def _lineage(self, client: str) -> tuple[str, ...]:
        return self.setup.lineage(client)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))
        self._work = RequestWork(setup.costs)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        levels = self._tree.levels(found.node)
        costs = self._costs(request, levels)
        worker = self._choose(request.client, costs, levels[0] if levels else NOBODY)
        work = next(work for work, workers in costs if workers >> worker & 1)
        self._backlogs.add_work(worker, request.request_id, request.client, work)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _costs(self, request: Request, levels: Sequence[Holders]) -> list[Costs]:
        """Return the request's work at each worker, which includes at least one prompt token."""
        output = self._lengths.expected(request.client) * (self.params.length_factor or 1.0)

        def cost(held_tokens: int, workers: int) -> Costs:
            hit = min(held_tokens, request.input_tokens - 1)
            return Costs(self._work.work_tokens(hit, request.input_tokens - hit, output), workers)

        others = self._fleet.everyone
        for level in levels:
            others &= ~level.workers
        return [*(cost(*level) for level in levels), *([cost(0, others)] if others else [])]

    def _slack(self, matched_tokens: int) -> float:
        """Return the slack, in tokens of prefill, for a cached prefix of ``matched_tokens``."""
        if not matched_tokens:
            # The product of an infinite slack and 0 tokens would be NaN.
            return 0.0
        return self.params.slack * self._work.work_tokens(0, matched_tokens, 0)

    def _choose(self, client: str, costs: list[Costs], holders: Holders) -> int:
        """Choose a worker; examine workers without the cached prefix only if necessary."""
        backlogs = self._backlogs
        finishes = Finishes(client, costs, backlogs, self._fleet.idle_workers, backlogs.bounds())
        if not holders.workers:
            return self._fleet.in_turn(finishes.least(self._fleet.everyone).workers)
        near, slack = finishes.least(holders.workers), self._slack(holders.tokens)
        if near.finish - finishes.floor <= slack:
            return self._fleet.in_turn(near.workers)
        best = finishes.least(self._fleet.everyone)
        return self._fleet.in_turn((near if near.finish - best.finish <= slack else best).workers)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if not self._fleet.end_request(request, worker):
            return
        self._backlogs.remove_work(worker, request.request_id, request.client)
        if output.length:
            self._lengths.learn(request.client, output.length)
            self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        if self._fleet.end_request(request, worker):
            self._backlogs.remove_work(worker, request.request_id, request.client)

    def on_weights(self) -> None:
        self._backlogs.reweigh()

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self._backlogs.add_empty(worker)

    def on_worker_left(self, worker: int) -> None:
        self._backlogs.drop_worker(worker)
