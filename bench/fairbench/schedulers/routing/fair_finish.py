"""Fair finish: locality, unless fair sharing would end the request much sooner elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.batch_cost import OutputLengths
from fairbench.schedulers.bounded_tree import MAX_NODES, BoundedTree, RecentNode
from fairbench.schedulers.request_work import RequestWork
from fairbench.schedulers.routing.backlog import Backlog
from fairbench.schedulers.routing.fleet import Fleet
from fairbench.schedulers.routing.tenant_backlog import TenantBacklog
from fairbench.tenants import Tenants

SLACK = 100.0


class FairFinish(Router):
    """Estimates for every worker when the request would be done if clients shared it fairly.

    That is after its client's own backlog there, its own work, and of every other client's backlog
    the part that fair sharing lets through meanwhile (``Backlog.finish``): a flood of one client
    counts for no more than the request's own client has to do. Of the workers that hold the longest
    match the one of the least estimate is chosen, unless some worker's is lower by more than the
    slack, so many times what computing the match takes: a document draws to its holder, a short
    system prompt that all share hardly. Ties in rotation. Work is what a request adds to a worker's
    time (``RequestWork``), with the output that its client's finished requests let expect, and a
    backlog falls by as much when it is over. A heuristic: no bound of the cluster is claimed,
    though each worker keeps its own.
    """

    name = "fair-finish"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """``slack``: times what computing the matched prefix takes, by which others may be sooner.

        With 0 the least estimate always wins, with inf the longest match. ``tenants``: with
        ``tree`` fair sharing is between siblings at every level of ``org/team/user``.
        ``length_factor`` makes the expected outputs so many times as long: what does it cost to
        expect wrongly? ``max_tree_nodes``: as in D2LPM.
        """

        slack: Annotated[float, Ge(0)] = SLACK
        tenants: Tenants | None = None
        length_factor: Annotated[float, Gt(0), Le(1000)] | None = None
        max_tree_nodes: Annotated[int, Ge(1)] | None = None

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self._fleet = Fleet(workers)
        self._tree = BoundedTree(params.max_tree_nodes or MAX_NODES)
        self._lengths = OutputLengths()
        self._work = RequestWork()
        self._weights: dict[str, float] = {}  # by which backlogs are summed; the setup's may change
        self._backlogs = {worker: self._backlog() for worker in self._fleet.workers}

    def _backlog(self) -> Backlog | TenantBacklog:
        def weight(node: str) -> float:
            return self.setup.weight(node)

        if self.params.tenants is None:
            return Backlog(weight)
        return TenantBacklog(weight, lambda client: self.setup.lineage(client))

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._work = RequestWork(setup.costs)

    def route(self, request: Request, now_s: float) -> int:
        self._heed_weights()
        found = self._tree.find(request.prompt)
        work = self._works(request, found.node)
        finish = {w: self._backlogs[w].finish(request.client, work[w]) for w in work}
        holders = self._tree.holders(found.node)
        worker = self._choose(finish, holders.workers, self._slack(holders.tokens))
        self._backlogs[worker].add(request.request_id, request.client, work[worker])
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _heed_weights(self) -> None:
        if self.setup.weights != self._weights:
            self._weights = dict(self.setup.weights)
            for backlog in self._backlogs.values():
                backlog.reweigh()

    def _works(self, request: Request, node: RecentNode) -> dict[int, int]:
        """What the request costs at each worker; at least one token is always computed."""
        cached = self._tree.cached_tokens(node)
        output = self._lengths.expected(request.client) * (self.params.length_factor or 1.0)
        of_cached: dict[int, int] = {}  # most workers hold nothing
        works: dict[int, int] = {}
        for worker in self._fleet.workers:
            hit = min(cached.get(worker, 0), request.input_tokens - 1)
            if hit not in of_cached:
                of_cached[hit] = self._work.tokens(hit, request.input_tokens - hit, output)
            works[worker] = of_cached[hit]
        return works

    def _slack(self, matched_tokens: int) -> float:
        """By how much another worker has to be better, in tokens of prefill."""
        if not matched_tokens:
            return 0.0  # an infinite slack too
        return self.params.slack * self._work.tokens(0, matched_tokens, 0)

    def _choose(self, finish: dict[int, float], holders: int, slack: float) -> int:
        holding = {w: at for w, at in finish.items() if holders >> w & 1}
        if holding and min(holding.values()) - min(finish.values()) <= slack:
            return self._fleet.cheapest(holding)
        return self._fleet.cheapest(finish)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if not self._fleet.finish(request, worker):
            return
        self._backlogs[worker].remove(request.request_id)
        if output.length:
            self._lengths.learn(request.client, output.length)
            self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        if self._fleet.finish(request, worker):
            self._backlogs[worker].remove(request.request_id)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.join(worker)
        self._backlogs[worker] = self._backlog()

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.leave(worker)
            self._tree.purge(worker)
            del self._backlogs[worker]
