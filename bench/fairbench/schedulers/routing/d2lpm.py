"""Double Deficit LPM: locality until a client's credit at a worker is used up ([DLPM] Alg. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import PS_PER_S, Prompt, Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gpu_charges import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.quanta import rounds_to_credit
from fairbench.schedulers.routing.fleet import Fleet
from fairbench.schedulers.routing.forgotten import MAX_CLIENTS, to_forget
from fairbench.schedulers.sharing import SharedCharges


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
        that; a quantum is then the time of so many computed tokens. Matches below
        ``min_match_tokens`` are ignored, so that a system prompt shared by all need not make a
        worker the favourite. ``insert_on_finish`` inserts prompt and output when the request ends,
        so that a follow-up turn matches both (Algorithm 2 inserts prompts only, line 18).
        """

        worker_quantum: Annotated[int, Gt(0)] = 40_000
        charge: Literal["input", "uncached", "split", "owner", "gpu-time"] = "input"
        min_match_tokens: Annotated[int, Ge(0)] = 0
        insert_on_finish: bool = False
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self.credit: dict[str, dict[int, float]] = {}  # q_{i,w}: client -> live worker -> credit
        # Of requests under way, by their ids: who pays how much.
        self._charges: dict[int, dict[str, float]] = {}
        self._fleet = Fleet(workers)
        self._tree = LocationTree(LocationNode)
        self._shared: dict[int, SharedCharges] = {}
        self._time: GPUCharges | None = None
        self._took_ps: dict[int, int] = {}  # of requests that are just over, by their ids

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        if self.params.charge == GPU_TIME:
            self._time = gpu_charges(self.name, setup)

    def _quantum(self, client: str) -> float:
        quantum = self.params.worker_quantum * self.setup.weight(client)
        return quantum if self._time is None else quantum * self._time.token_ps()

    def route(self, request: Request, now_s: float) -> int:
        credit = self._credit_of(request.client)
        found = self._tree.find(request.prompt)
        worker = self._select(request.client, credit, self._preferred(found.node))
        self._deduct(request, self._charged(request, found.node, worker), worker)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _credit_of(self, client: str) -> dict[int, float]:
        """The client's credit; it is the last used now, and others may be forgotten for it."""
        credit = self.credit.pop(client, None)
        if credit is None:
            if len(self.credit) >= MAX_CLIENTS:
                busy = {payer for payers in self._charges.values() for payer in payers}
                for forgotten in to_forget(self.credit, busy):
                    del self.credit[forgotten]
            credit = dict.fromkeys(self._fleet.workers, 0.0)
        self.credit[client] = credit
        return credit

    def _deduct(self, request: Request, tokens: int, worker: int) -> None:
        """Charge whoever has to pay for a prompt of which so many tokens count at the worker."""
        paid = self._charges[request.request_id] = self._due(request, tokens, worker)
        for client, charged in paid.items():
            self._credit_of(client)[worker] -= charged

    def _due(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        charge, weight = self.params.charge, self.params.extend_weight
        if self._time is not None:
            return {request.client: self._time.dispatched(request, tokens)}
        if charge == "split" or charge == "owner":
            shared = self._shared.setdefault(worker, SharedCharges(charge))
            return {who: weight * n for who, n in shared.charges(request, tokens).items()}
        return {request.client: weight * tokens}

    def _preferred(self, node: LocationNode) -> int:
        """G of line 13 as bits: the workers with the longest match."""
        tokens, workers = self._tree.holders(node)
        return workers if tokens >= self.params.min_match_tokens else 0

    def _select(self, client: str, credit: dict[int, float], preferred: int) -> int:
        """SELECTWORKER (lines 3-8)."""
        available = [worker for worker, left in credit.items() if left > 0]
        if not available:
            refill(credit, self._quantum(client))
            available = [worker for worker, left in credit.items() if left > 0]
        candidates = [worker for worker in available if preferred >> worker & 1]
        return self._fleet.least_loaded(candidates or available)

    def _charged(self, request: Request, node: LocationNode, worker: int) -> int:
        """Tokens to pay for at dispatch; the engine computes at least one, even on a full match."""
        if self.params.charge == "input":
            return request.input_tokens
        return max(1, request.input_tokens - self._tree.cached_tokens(node).get(worker, 0))

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        if self._time is not None:
            self._took_ps[request.request_id] = round(gpu_s * PS_PER_S)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._charges.pop(request.request_id, None)
        cost: float = self.params.output_weight * output.length
        if self._time is not None:
            took_ps = self._took_ps.pop(request.request_id, 0)
            cost = took_ps + self._time.over(request)
        if self._fleet.finish(request, worker):
            self.credit[request.client][worker] -= cost
            if self.params.insert_on_finish and output.length:
                self._tree.insert((*request.prompt, output), worker)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        paid = self._charges.pop(request.request_id, {})
        if self._time is not None:
            self._time.over(request)
        if not self._fleet.finish(request, worker):
            return
        for client, charged in paid.items():
            credit = self._credit_of(client)
            most = self._quantum(client)
            # Quanta granted since must not lift it above what a credit can be.
            credit[worker] = max(credit[worker], min(credit[worker] + charged, most))

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.join(worker)
        for client, credit in self.credit.items():
            # Rebuilt in worker order, in which ties are broken.
            self.credit[client] = {w: credit.get(w, 0) for w in self._fleet.workers}

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.leave(worker)
            self._tree.purge(worker)
            self._shared.pop(worker, None)
            for credit in self.credit.values():
                del credit[worker]


def refill(credit: dict[int, float], quantum: float) -> None:
    """Lines 5-6: add ``quantum`` to every worker until one is positive, in one go.

    Precondition: there is a worker, and none is positive.
    """
    rounds = min(rounds_to_credit(left, quantum) for left in credit.values())
    for worker in credit:
        credit[worker] += rounds * quantum
