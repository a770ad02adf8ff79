"""Double Deficit LPM: locality until a client's credit at a worker is used up ([DLPM] Alg. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import PS_PER_S, Prompt, Request, Segment
from fairbench.errors import UsageError
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.bounded_tree import MAX_NODES, BoundedTree, RecentNode
from fairbench.schedulers.gpu_charges import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.mean_answers import MeanAnswers
from fairbench.schedulers.peers.credit import SharedCredit
from fairbench.schedulers.peers.totals import Sums, Totals
from fairbench.schedulers.routing.fleet import Fleet
from fairbench.schedulers.routing.forgotten import MAX_CLIENTS, to_forget
from fairbench.schedulers.routing.worker_credit import WorkerCredit
from fairbench.schedulers.sharing import SharedCharges
from fairbench.tenants import Tenants


class D2LPM(Router):
    """Each client has a credit at each worker; a request follows its longest prefix while it lasts.

    Of the workers where the client is in credit, those that hold the longest match are preferred,
    then the shortest queue wins, ties in rotation. Out of credit everywhere, the client gets
    quanta until it is in credit somewhere. Where Algorithm 2 as printed never ends (lines 4-6),
    the set of workers in credit is computed again after the refill, which is summed in closed form.
    A credit never exceeds the quantum, and a debt never exceeds one prompt plus the outputs of the
    requests under way there. (With ``charge=gpu-time`` a credit can exceed it by what requests were
    charged ahead and did not take: all of it goes back, so that charges add up to busy time.)
    """

    name = "d2lpm"
    cluster_theorems = MappingProxyType({"DLPM Theorem 4.1": "D2LPM Theorem 5.1"})
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """``worker_quantum`` is Q^w in service units (an output token counts ``output_weight``).

        It is that of a client of weight 1; one of weight 2 gets twice as much.
        It has to be many mean request costs, or clients leave their prefix at every request.
        ``charge``: ``input`` deducts the full prompt (line 16), ``uncached`` only what the chosen
        worker does not hold; ``split`` and ``owner`` deduct the latter from those who share a
        prefix there, as in ``SharedCharges`` (``input`` is its ``each``, ``uncached`` its
        ``first``); ``gpu-time`` deducts what the worker is expected to take for the latter, beyond
        what an iteration takes anyway, and at the end what it really took for all of it in place of
        that; a quantum is then the time of so many computed tokens. Outputs are deducted when the
        request is over (line 22), so that of a client with many requests under way and long answers
        the worker that finishes least looks cheapest, and gets more; ``outputs=ahead`` deducts at
        dispatch what the client's answers were on average, and at the end the difference, all of
        which goes back if it was less. Matches below ``min_match_tokens`` are ignored, so that a
        system prompt shared by all need not make a worker the favourite. ``insert_on_finish``
        inserts prompt and output when the request ends, so that a follow-up turn matches both
        (Algorithm 2 inserts prompts only, line 18).
        ``tenants``: with ``tree`` every level of ``org/team/user`` has a credit at each worker, and
        a worker is open to a request only if all of them are in credit there, so that many clients
        of one tenant hold on to their workers no longer than one would.
        ``max_tree_nodes``: of how many stretches of prompts it is remembered who holds them, of a
        million if not given.
        """

        worker_quantum: Annotated[int, Gt(0)] = 40_000
        charge: Literal["input", "uncached", "split", "owner", "gpu-time"] = "input"
        min_match_tokens: Annotated[int, Ge(0)] = 0
        insert_on_finish: bool = False
        tenants: Tenants | None = None
        max_tree_nodes: Annotated[int, Ge(1)] | None = None
        outputs: Literal["ahead"] | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        # q_{i,w}: client (or tenant) -> live worker -> credit
        self.credit: dict[str, WorkerCredit] = {}
        # Of requests under way, by their ids: who pays how much.
        self._charges: dict[int, dict[str, float]] = {}
        self._fleet = Fleet(workers)
        self._tree = BoundedTree(params.max_tree_nodes or MAX_NODES)
        self._shared: dict[int, SharedCharges] = {}
        self._flat = params.tenants is None
        self._answers = MeanAnswers() if params.outputs == "ahead" else None
        self._ahead: dict[int, float] = {}  # charged for outputs yet to come, by request id
        self._time: GPUCharges | None = None
        self._took_ps: dict[int, int] = {}  # of requests that are just over, by their ids
        self.shared: SharedCredit | None = None  # what all routers have charged, if it is not alone

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        if self.params.charge == GPU_TIME:
            if self._answers is not None:
                raise UsageError(f"{self.name}.outputs = 'ahead': not with charge = {GPU_TIME!r}")
            self._time = gpu_charges(self.name, setup)

    def _quantum(self, client: str) -> float:
        quantum = self.params.worker_quantum * self.setup.weight(client)
        return quantum if self._time is None else quantum * self._time.token_ps()

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        worker = self._select(self._available(request.client), self._preferred(found.node))
        self._deduct(request, self._charged(request, found.node, worker), worker)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _nodes(self, client: str) -> tuple[str, ...]:
        """Whose credit a client needs, and spends: its tenants' and its own."""
        return (client,) if self._flat else self.setup.lineage(client)

    def _available(self, client: str) -> int:
        """The workers where the client and all its tenants are in credit (lines 3-6), as bits."""
        within = self._fleet.everyone
        for node in (client,) if self._flat else self._nodes(client):
            credit = self._credit_of(node)
            if not within & credit.positive:
                rounds = credit.refill(self._quantum(node), within)
                if self.shared is not None:
                    self.shared.grant(node, rounds)
            within &= credit.positive
        return within

    def _credit_of(self, client: str) -> WorkerCredit:
        """The client's credit; it is the last used now, and others may be forgotten for it."""
        credit = self.credit.pop(client, None)
        if credit is None:
            if len(self.credit) >= MAX_CLIENTS:
                paying = {payer for payers in self._charges.values() for payer in payers}
                busy = {node for payer in paying for node in self._nodes(payer)}
                for forgotten in to_forget(self.credit, busy):
                    del self.credit[forgotten]
                    if self.shared is not None:
                        self.shared.forget(forgotten)
                    if self._answers is not None:
                        self._answers.forget(forgotten)
            credit = WorkerCredit(self._fleet.everyone)
        self.credit[client] = credit
        return credit

    def _deduct(self, request: Request, tokens: int, worker: int) -> None:
        """Charge whoever has to pay for a prompt of which so many tokens count at the worker."""
        paid = self._charges[request.request_id] = self._due(request, tokens, worker)
        if self._answers is not None:
            expected = self.params.output_weight * self._answers.expected(request.client)
            self._ahead[request.request_id] = expected
            paid[request.client] = paid.get(request.client, 0) + expected
        for client, charged in paid.items():
            for node in (client,) if self._flat else self._nodes(client):
                self._spend(self._credit_of(node), node, worker, charged)

    def _spend(self, credit: WorkerCredit, node: str, worker: int, cost: float) -> None:
        credit.spend(worker, cost)
        if self.shared is not None:
            self.shared.spend(node, worker, cost)

    def _due(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        charge, weight = self.params.charge, self.params.extend_weight
        if self._time is not None:
            return {request.client: self._time.dispatched(request, tokens)}
        if charge == "split" or charge == "owner":
            shared = self._shared.setdefault(worker, SharedCharges(charge))
            return {who: weight * n for who, n in shared.charges(request, tokens).items()}
        return {request.client: weight * tokens}

    def _preferred(self, node: RecentNode) -> int:
        """G of line 13 as bits: the workers with the longest match."""
        tokens, workers = self._tree.holders(node)
        return workers if tokens >= self.params.min_match_tokens else 0

    def _select(self, available: int, preferred: int) -> int:
        """SELECTWORKER (lines 7-8)."""
        return self._fleet.least_loaded(available & preferred or available)

    def _charged(self, request: Request, node: RecentNode, worker: int) -> int:
        """Tokens to pay for at dispatch; the engine computes at least one, even on a full match."""
        if self.params.charge == "input":
            return request.input_tokens
        return max(1, request.input_tokens - self._tree.cached_tokens(node).get(worker, 0))

    @property
    def wants_gpu_time(self) -> bool:
        return self.params.charge == GPU_TIME

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        if self._time is not None:
            self._took_ps[request.request_id] = round(gpu_s * PS_PER_S)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._charges.pop(request.request_id, None)
        cost: float = self.params.output_weight * output.length
        if self._answers is not None:
            cost -= self._ahead.pop(request.request_id, 0)
        if self._time is not None:
            took_ps = self._took_ps.pop(request.request_id, 0)
            cost = took_ps + self._time.over(request)
        if self._fleet.finish(request, worker):
            if self._answers is not None and output.length:
                self._answers.finished(request.client, output.length)
            for node in (request.client,) if self._flat else self._nodes(request.client):
                if self._answers is not None and cost < 0:
                    self._give_back(self.credit[node], node, worker, -cost)
                else:
                    self._spend(self.credit[node], node, worker, cost)
            if self.params.insert_on_finish and output.length:
                self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        paid = self._charges.pop(request.request_id, {})
        self._ahead.pop(request.request_id, None)
        if self._time is not None:
            self._time.over(request)
        if not self._fleet.finish(request, worker):
            return
        for client, charged in paid.items():
            for node in self._nodes(client):
                self._give_back(self._credit_of(node), node, worker, charged)

    def _give_back(self, credit: WorkerCredit, node: str, worker: int, charged: float) -> None:
        """Quanta granted since must not lift it above what a credit can be."""
        most = min(credit[worker] + charged, self._quantum(node))
        before, credit[worker] = credit[worker], max(credit[worker], most)
        if self.shared is not None:
            self.shared.spend(node, worker, before - credit[worker])

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.join(worker)
        for credit in self.credit.values():
            credit[worker] = 0.0

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.leave(worker)
            self._tree.purge(worker)
            self._shared.pop(worker, None)
            for credit in self.credit.values():
                del credit[worker]

    # One of several: q = rounds x quantum - what all have charged, as far as it is heard.

    def join_peers(self) -> None:
        """Told once, before the first request, that there are other routers.

        Raises UsageError with tenants, whose rounds differ by worker.
        """
        if self.params.tenants is not None:
            raise UsageError(f"{self.name}.tenants: not where routers share sums")
        self.shared = SharedCredit()

    def export_totals(self, since: int = 0) -> Totals:
        """The rounds of quanta that clients were granted, and what this router has charged."""
        assert self.shared is not None, "join_peers comes first"
        return self.shared.export(since)

    def charged_totals(self) -> Sums:
        """What this router has charged, by client and worker."""
        assert self.shared is not None, "join_peers comes first"
        return self.shared.charged

    def heard_totals(self) -> Mapping[str, Totals]:
        """The latest that was heard of each other router."""
        assert self.shared is not None, "join_peers comes first"
        return self.shared.others.latest

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Take over what another router has charged and granted since it was heard last."""
        assert self.shared is not None, "join_peers comes first"
        for client, news in self.shared.hear(origin, totals).items():
            forgotten = self.shared.has_forgotten and client not in self.credit
            credit, quantum = self._credit_of(client), self._quantum(client)
            credit.shift(news.rounds * quantum, news.charged)
            if forgotten:  # here or there: more than a quantum nobody has
                credit.cap(quantum)
            for worker, charged in news.charged.items():
                if charged < 0 and worker in credit:
                    credit[worker] = min(credit[worker], quantum)
