"""The router D2LPM (Double Deficit LPM): locality while credit lasts ([DLPM] Alg. 2)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Protocol

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import OUTPUT_PRICE, Request, Segment
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.dispatch import Charge, dispatch_charging
from fairbench.schedulers.charging.engine import GPU_TIME
from fairbench.schedulers.location_tree import MAX_NODES, BoundedTree, RecentNode
from fairbench.schedulers.output_lengths import BATCH, MAX_CLIENTS
from fairbench.schedulers.peers import CreditChange, SharedCredit, Sums, Totals
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.schedulers.routing.fleet import Filling, as_bits, members
from fairbench.tenants import Tenants


class WorkerCredit(MutableMapping[int, float]):
    """The credit of a client at each worker, as a mapping.

    ``positive`` is the set of workers with credit above 0, as bits. A client's credits are equal at
    all workers where the client has never sent a request, so a single number represents these
    credits. All other credits are stored by worker.
    """

    __slots__ = ("_apart", "_level", "_untouched", "positive")

    def __init__(self, workers: int) -> None:
        # ``_level`` is a client's credit at every worker to which it has never sent a request.
        self._level = 0.0
        self._untouched = workers
        self._apart: dict[int, float] = {}
        self.positive = 0

    def __getitem__(self, worker: int) -> float:
        if worker in self._apart:
            return self._apart[worker]
        if self._untouched >> worker & 1:
            return self._level
        raise KeyError(worker)

    def __setitem__(self, worker: int, credit: float) -> None:
        self._untouched &= ~(1 << worker)
        self._apart[worker] = credit
        if credit > 0:
            self.positive |= 1 << worker
        else:
            self.positive &= ~(1 << worker)

    def spend(self, worker: int, cost: float) -> None:
        """Subtract ``cost`` from a client's credit at a worker.

        Each request causes two calls of this method, so the code is written for speed.
        """
        if worker not in self._apart:
            self[worker] -= cost
            return
        self._apart[worker] = left = self._apart[worker] - cost
        if left > 0:
            self.positive |= 1 << worker
        else:
            self.positive &= ~(1 << worker)

    def __delitem__(self, worker: int) -> None:
        if self._apart.pop(worker, None) is None and not self._untouched >> worker & 1:
            raise KeyError(worker)
        self._untouched &= ~(1 << worker)
        self.positive &= ~(1 << worker)

    def __iter__(self) -> Iterator[int]:
        yield from self._apart
        yield from members(self._untouched)

    def __len__(self) -> int:
        return len(self._apart) + self._untouched.bit_count()

    def total(self) -> float:
        return sum(self._apart.values()) + self._level * self._untouched.bit_count()

    def refill(self, quantum: float, available: int) -> float:
        """Grant quanta at all workers in debt until an available worker has credit.

        The refill implements [DLPM] Alg. 2 lines 5-6, with all rounds in a single step.
        ``available`` is a set of workers, as bits. Precondition: the set is not empty, and the
        client has no credit at any worker of the set. Returns how many rounds of quanta were
        granted.
        """
        tried = [left for worker, left in self._apart.items() if available >> worker & 1]
        if available & self._untouched:
            tried.append(self._level)
        rounds = min(rounds_to_credit(left, quantum) for left in tried)

        def granted(left: float) -> float:
            return left + min(rounds, rounds_to_credit(left, quantum)) * quantum

        lifted = {worker: granted(left) for worker, left in self._apart.items() if left <= 0}
        # The attributes are updated directly for speed: a refill changes the credit at all workers.
        self._apart.update(lifted)
        self.positive |= as_bits(worker for worker, left in lifted.items() if left > 0)
        if self._level <= 0:
            self._set_level(granted(self._level))
        return rounds

    def shift(self, more: float, less: Mapping[int, float]) -> None:
        """Add ``more`` at every worker, and subtract ``less[w]`` at each worker w in ``less``."""
        changed = {w: self[w] + (more - less[w]) for w in less if less[w] and w in self}
        if more:
            self._set_level(self._level + more)
            changed = {w: left + more for w, left in self._apart.items()} | changed
        self.update(changed)

    def cap(self, most: float) -> None:
        """Reduce the credit at every worker to at most ``most``."""
        self._set_level(min(self._level, most))
        self.update({w: most for w, left in self._apart.items() if left > most})

    def _set_level(self, level: float) -> None:
        self._level = level
        if level > 0:
            self.positive |= self._untouched
        else:
            self.positive &= ~self._untouched


def to_forget(
    credit: Mapping[str, WorkerCredit], busy: Container[str], batch: int = BATCH
) -> list[str]:
    """Return up to ``batch`` clients to forget, from the less recently used half of idle clients.

    Clients in ``busy`` are never forgotten. ``credit`` has each client's credits, the least
    recently used client first. When a forgotten client returns, its debt has been forgotten, too.
    Clients with the most credit are therefore forgotten first, because such clients gain least.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]


class LiveWorkers(Protocol):
    """The live workers of a router, as a set of bits."""

    @property
    def everyone(self) -> int: ...


class WorkerCredits:
    """The credits q_{i,w} of all clients at all workers.

    A client's requests may only go to workers where the client has credit. No credit ever exceeds
    the quantum. A debt never exceeds one prompt plus the outputs of the client's unfinished
    requests at the worker.

    Args:
        quantum: The quantum Q^w of a client of weight 1, in weighted tokens.
        workers: The live workers of the router.
        tenants: Whether tenants have credits as well. A client's requests may then only go to
            workers where the client and all its tenants have credit.
    """

    setup = Setup()

    def __init__(
        self, quantum: float, workers: LiveWorkers, tenants: Tenants | None = None
    ) -> None:
        self.in_tree = tenants is not None
        self.quantum = quantum
        # ``of`` maps each client and tenant to its credit; the client that was used least recently
        # is first.
        self.of: dict[str, WorkerCredit] = {}
        # ``unit_of_time`` returns the GPU time in picoseconds that counts as one token; it is None
        # if tokens are charged.
        self.unit_of_time: Callable[[], float] | None = None
        # ``payers`` returns the clients that have paid for unfinished requests.
        self.payers: Callable[[], Iterable[str]] = tuple
        self.on_forget: Callable[[str], None] = lambda client: None
        # If several routers share credits, ``shared`` holds the charges of all routers; otherwise
        # it is None.
        self.shared: SharedCredit | None = None
        self._workers = workers

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the nodes whose credits a request uses: the client's tenants and the client."""
        return self.setup.lineage(client) if self.in_tree else (client,)

    def quantum_of(self, node: str) -> float:
        """Return the node's quantum, which grows with its weight, in the unit of the charges."""
        quantum = self.quantum * self.setup.weight(node)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def available(self, client: str) -> int:
        """Return the workers where the client has positive credit, as bits (lines 3-6).

        A client without credit at any worker first gets quanta until the client has credit at some
        worker. After the refill, the set of workers is computed again, because Algorithm 2 as
        printed would never end. All rounds of a quantum refill are computed in a single step.
        """
        within = self._workers.everyone
        for node in self.nodes(client):
            credit = self.credit_of(node)
            if not within & credit.positive:
                rounds = credit.refill(self.quantum_of(node), within)
                if self.shared is not None:
                    self.shared.grant(node, rounds)
            within &= credit.positive
        return within

    def credit_of(self, node: str) -> WorkerCredit:
        """Return the credit of a node, which becomes the most recently used; prune old nodes."""
        credit = self.of.pop(node, None)
        if credit is None:
            if len(self.of) >= MAX_CLIENTS:
                busy = {node for payer in self.payers() for node in self.nodes(payer)}
                for forgotten in to_forget(self.of, busy):
                    del self.of[forgotten]
                    if self.shared is not None:
                        self.shared.forget(forgotten)
                    self.on_forget(forgotten)
            credit = WorkerCredit(self._workers.everyone)
        self.of[node] = credit
        return credit

    def charge(self, client: str, worker: int, cost: float) -> None:
        """Charge a client, which may be new, for a dispatch to a worker (line 16)."""
        for node in self.nodes(client):
            self._spend(self.credit_of(node), node, worker, cost)

    def charge_end(self, client: str, worker: int, cost: float) -> None:
        """Charge a client for a request that has ended at a worker (line 22)."""
        for node in self.nodes(client):
            self._spend(self.of[node], node, worker, cost)

    def charge_end_capped(self, client: str, worker: int, cost: float) -> None:
        """Charge a client as ``charge_end`` does, but limit a refunded credit to a quantum."""
        for node in self.nodes(client):
            if cost < 0:
                self._refund(self.of[node], node, worker, -cost)
            else:
                self._spend(self.of[node], node, worker, cost)

    def refund_dispatch(self, client: str, worker: int, amount: float) -> None:
        """Refund the charge of a failed dispatch, but limit the credit to a quantum."""
        for node in self.nodes(client):
            self._refund(self.credit_of(node), node, worker, amount)

    def _spend(self, credit: WorkerCredit, node: str, worker: int, cost: float) -> None:
        credit.spend(worker, cost)
        if self.shared is not None:
            self.shared.spend(node, worker, cost)

    def _refund(self, credit: WorkerCredit, node: str, worker: int, amount: float) -> None:
        # The client may have received quanta since the charge, so a full refund could raise its
        # credit above a quantum.
        most = min(credit[worker] + amount, self.quantum_of(node))
        before, credit[worker] = credit[worker], max(credit[worker], most)
        if self.shared is not None:
            self.shared.spend(node, worker, before - credit[worker])

    def add_worker(self, worker: int, *, with_quantum: bool = False) -> None:
        """Add a worker where each client has credit 0, or one quantum if ``with_quantum``."""
        for node, credit in self.of.items():
            credit[worker] = self.quantum_of(node) if with_quantum else 0.0

    def remove_worker(self, worker: int) -> None:
        for credit in self.of.values():
            del credit[worker]

    def apply_remote(self, client: str, change: CreditChange) -> None:
        """Apply the quanta and charges of a client that other routers report."""
        assert self.shared is not None, "join_peers comes first"
        forgotten = self.shared.has_forgotten and client not in self.of
        credit, quantum = self.credit_of(client), self.quantum_of(client)
        credit.shift(change.rounds * quantum, change.charged)
        # The other router may have forgotten the client, so the credit that it reports may exceed a
        # quantum.
        if forgotten:
            credit.cap(quantum)
        for worker, charged in change.charged.items():
            if charged < 0 and worker in credit:
                credit[worker] = min(credit[worker], quantum)


class CreditExchange:
    """The methods of ``Exchanges`` for a router that shares credits with other routers."""

    name: ClassVar[str]
    credits: WorkerCredits

    @property
    def _shared(self) -> SharedCredit:
        assert self.credits.shared is not None, "join_peers comes first"
        return self.credits.shared

    def join_peers(self) -> None:
        """From now on, share the credits with other routers.

        Raises UsageError if the credits form a tree of tenants.
        """
        if self.credits.in_tree:
            raise UsageError(
                f"{self.name}.tenants: cannot be combined with routers that share counters"
            )
        self.credits.shared = SharedCredit()

    def export_totals(self, since: int = 0) -> Totals:
        return self._shared.export_credit(since)

    def charged_totals(self) -> Sums:
        return self._shared.charged

    def heard_totals(self) -> Mapping[str, Totals]:
        return self._shared.others.latest

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        for client, change in self._shared.new_changes(origin, totals).items():
            self.credits.apply_remote(client, change)

    def forget_origin(self, origin: str) -> None:
        self._shared.others.forget_origin(origin)


class D2LPM(CreditExchange, PrefixRouter):
    """A router that prefers the worker with the longest cached prefix while credit there lasts.

    Each client has a separate credit at each worker. Among the workers where the client has
    positive credit, the router considers the workers with the longest cached prefix, and chooses
    the worker with the fewest requests in flight; ties rotate. A client without credit at any
    worker gets quanta until the client has positive credit at some worker. ``route`` implements
    stream 1 of Algorithm 2, ``on_finish`` implements stream 2, and ``PrefixRouter.on_evict``
    implements stream 3 (lines 24 to 27).
    """

    name = "d2lpm"
    cluster_theorems = MappingProxyType({"DLPM Theorem 4.1": "D2LPM Theorem 5.1"})
    served_params = MappingProxyType({"fill_below": 2})

    @dataclass(frozen=True)
    class Params:
        """Parameters of the credits, of the charging and of the prefix tree.

        ``worker_quantum`` is Q^w of a client of weight 1, in weighted tokens; a client of weight 2
        gets twice as much. If the quantum is only a few times the mean cost of a request, clients
        leave their prefixes after a few requests. ``dispatch_charging`` describes ``charge`` and
        ``outputs``. Prefix matches of fewer than ``min_match_tokens`` tokens are ignored, such as a
        system prompt that all clients share. ``insert_on_finish`` inserts prompt and output into
        the prefix tree when a request ends, so that the next turn of a conversation matches its
        whole history; Algorithm 2 inserts prompts only (line 18). ``tenants=tree`` keeps credits at
        every level of ``org/team/user``. ``max_tree_nodes`` is the maximum size of the prefix tree
        in nodes, a million by default. ``weights`` of clients override the experiment's weights.
        ``Filling`` describes ``fill_below``; if it is None or 0, Algorithm 2 works as published.
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
        """The credits q_{i,w} of each client or tenant at each live worker."""
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
        # This call implements lines 4-6 of Alg. 2.
        available = self.credits.available(request.client)
        length, holders = self._tree.holders(found.node)  # This call implements line 13 of Alg. 2.
        preferred = available & holders if length >= self.params.min_match_tokens else 0
        # This statement implements lines 7-8 and 14 of Alg. 2.
        worker = self._fleet.least_loaded(preferred or available)
        if self._filling is not None:
            worker = self._filling.instead_of(worker, available)
        tokens = self._charged_tokens(request, found.node, worker)
        for client, cost in self._charging.dispatched(request, tokens, worker).items():
            self.credits.charge(client, worker, cost)  # implements line 16 of Alg. 2
        self._tree.add(found, request.prompt, worker)  # implements line 18 of Alg. 2
        self._fleet.dispatch(request, worker)  # This call implements lines 15 and 17 of Alg. 2.
        return worker

    def _charged_tokens(self, request: Request, node: RecentNode, worker: int) -> int:
        """Return the number of charged prompt tokens, at least 1, because engines compute 1."""
        if self.params.charge == "input":
            return request.input_tokens
        return max(1, request.input_tokens - self._tree.cached_tokens(node).get(worker, 0))

    @property
    def wants_gpu_time(self) -> bool:
        return self.params.charge == GPU_TIME

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self._charging.record_time(request, gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        cost = self._charging.end_charge(request, output.length)
        if not self._fleet.end_request(request, worker):  # This call implements line 23 of Alg. 2.
            return
        self._charging.answered(request.client, output.length)
        self._settle(request.client, worker, cost)  # This call implements line 22 of Alg. 2.
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
