"""The accounts of D2LPM: clients' credits at each worker, and charges at dispatch.

Several routers may share clients' credits; they then exchange the charges.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from typing import ClassVar, Literal

from fairbench.core import PS_PER_S, Request
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.engine import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.charging.shared_prefixes import SharedCharges, Sharing
from fairbench.schedulers.output_lengths import BATCH, MAX_CLIENTS, MeanAnswers
from fairbench.schedulers.parts.fleet import Fleet, as_bits, members
from fairbench.schedulers.peers import CreditChange, SharedCredit, Sums, Totals
from fairbench.tenants import Tenants


class WorkerCredit(MutableMapping[int, float]):
    """A client's credit at each worker, as a mapping.

    ``positive`` is the set of workers with credit above 0, as bits. A single number represents the
    equal credits at all workers to which the client has never sent a request.
    """

    __slots__ = ("_apart", "_level", "_untouched", "positive")

    def __init__(self, workers: int) -> None:
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
        """Subtract ``cost`` from a client's credit at a worker."""
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
        """Grant the client quanta until it has positive credit at an available worker.

        The quanta are granted at all workers where the client has no credit, in a single step
        ([DLPM] Alg. 2 lines 5-6). Return how many rounds of quanta were granted. Precondition:
        ``available`` is a non-empty set of workers at which the client has no credit.
        """
        tried = [left for worker, left in self._apart.items() if available >> worker & 1]
        if available & self._untouched:
            tried.append(self._level)
        rounds = min(rounds_to_credit(left, quantum) for left in tried)

        def granted(left: float) -> float:
            return left + min(rounds, rounds_to_credit(left, quantum)) * quantum

        lifted = {worker: granted(left) for worker, left in self._apart.items() if left <= 0}
        # Direct updates of the attributes are faster than ``self[worker] = ...`` for each worker.
        self._apart.update(lifted)
        self.positive |= as_bits(worker for worker, left in lifted.items() if left > 0)
        if self._level <= 0:
            self._set_level(granted(self._level))
        return rounds

    def shift(self, more: float, less: Mapping[int, float]) -> None:
        """Add ``more`` to the credit at every worker, and subtract ``less[w]`` at each worker w."""
        changed = {w: self[w] + (more - less[w]) for w in less if less[w] and w in self}
        if more:
            self._set_level(self._level + more)
            changed = {w: left + more for w, left in self._apart.items()} | changed
        self.update(changed)

    def cap(self, most: float) -> None:
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
    """Return up to ``batch`` idle clients whose credits should be deleted.

    ``credit`` is sorted by last use, the least recent first. All returned clients are from the
    least recently used half of all idle clients. Clients with the most credit are deleted first,
    because the deletion of a client with negative credit would erase its debt.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]


class WorkerCredits:
    """The credits q_{i,w} of all clients i at all workers w.

    A client's requests are sent only to workers at which the client has credit. A credit never
    exceeds the quantum. A client's debt at a worker never exceeds the charge for one prompt plus
    the outputs of its unfinished requests at the worker.

    Args:
        quantum: The quantum Q^w of a client of weight 1, in weighted tokens.
        fleet: The live workers.
        tenants: Whether tenants have credits as well as clients. If tenants have credits, a request
            may only go to workers at which its client and all tenants of the client have credit.
    """

    setup = Setup()

    def __init__(self, quantum: float, fleet: Fleet, tenants: Tenants | None = None) -> None:
        self.in_tree = tenants is not None
        self.quantum = quantum
        # ``of`` maps clients and tenants to credits, the least recently used first.
        self.of: dict[str, WorkerCredit] = {}
        # ``unit_of_time`` returns the GPU time of a token in picoseconds, or is None if clients are
        # charged for tokens.
        self.unit_of_time: Callable[[], float] | None = None
        # ``payers`` returns the clients that were charged for unfinished requests.
        self.payers: Callable[[], Iterable[str]] = tuple
        self.on_forget: Callable[[str], None] = lambda client: None
        # ``shared`` holds the charges of all routers, or is None if there is only one router.
        self.shared: SharedCredit | None = None
        self._fleet = fleet

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the nodes whose credits a request uses: the client's tenants and the client."""
        return self.setup.lineage(client) if self.in_tree else (client,)

    def quantum_of(self, node: str) -> float:
        quantum = self.quantum * self.setup.weight(node)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def available(self, client: str) -> int:
        """Return the set of workers at which the client has credit ([DLPM] Alg. 2 lines 3-6).

        A client without credit at any worker gets quanta. The set of workers with credit is
        computed again after each grant of quanta; otherwise, the loop of Algorithm 2 would never
        end.
        """
        within = self._fleet.everyone
        for node in self.nodes(client):
            credit = self.credit_of(node)
            if not within & credit.positive:
                rounds = credit.refill(self.quantum_of(node), within)
                if self.shared is not None:
                    self.shared.grant(node, rounds)
            within &= credit.positive
        return within

    def credit_of(self, node: str) -> WorkerCredit:
        """Return a node's credit and mark it as just used; delete credits that are long unused."""
        credit = self.of.pop(node, None)
        if credit is None:
            if len(self.of) >= MAX_CLIENTS:
                busy = {node for payer in self.payers() for node in self.nodes(payer)}
                for forgotten in to_forget(self.of, busy):
                    del self.of[forgotten]
                    if self.shared is not None:
                        self.shared.forget(forgotten)
                    self.on_forget(forgotten)
            credit = WorkerCredit(self._fleet.everyone)
        self.of[node] = credit
        return credit

    def charge(self, client: str, worker: int, cost: float) -> None:
        """Charge a client for a dispatch to a worker ([DLPM] Alg. 2 line 16)."""
        for node in self.nodes(client):
            self._spend(self.credit_of(node), node, worker, cost)

    def charge_end(self, client: str, worker: int, cost: float) -> None:
        """Charge a client for a finished request at a worker ([DLPM] Alg. 2 line 22)."""
        for node in self.nodes(client):
            self._spend(self.of[node], node, worker, cost)

    def charge_end_capped(self, client: str, worker: int, cost: float) -> None:
        """Do the same as ``charge_end``, but let refunds raise a credit to at most one quantum."""
        for node in self.nodes(client):
            if cost < 0:
                self._refund(self.of[node], node, worker, -cost)
            else:
                self._spend(self.of[node], node, worker, cost)

    def refund_dispatch(self, client: str, worker: int, amount: float) -> None:
        """Refund the charge of a failed dispatch, but raise the credit to at most one quantum."""
        for node in self.nodes(client):
            self._refund(self.credit_of(node), node, worker, amount)

    def _spend(self, credit: WorkerCredit, node: str, worker: int, cost: float) -> None:
        credit.spend(worker, cost)
        if self.shared is not None:
            self.shared.spend(node, worker, cost)

    def _refund(self, credit: WorkerCredit, node: str, worker: int, amount: float) -> None:
        # A full refund could raise the credit above a quantum if the client has received quanta
        # since the charge.
        most = min(credit[worker] + amount, self.quantum_of(node))
        before, credit[worker] = credit[worker], max(credit[worker], most)
        if self.shared is not None:
            self.shared.spend(node, worker, before - credit[worker])

    def add_worker(self, worker: int, *, with_quantum: bool = False) -> None:
        """Add a worker at which each client has credit 0, or one quantum if ``with_quantum``."""
        for node, credit in self.of.items():
            credit[worker] = self.quantum_of(node) if with_quantum else 0.0

    def remove_worker(self, worker: int) -> None:
        for credit in self.of.values():
            del credit[worker]

    def apply_remote(self, client: str, change: CreditChange) -> None:
        """Apply a change of the client's credit that another router has reported."""
        assert self.shared is not None, "join_peers comes first"
        forgotten = self.shared.has_forgotten and client not in self.of
        credit, quantum = self.credit_of(client), self.quantum_of(client)
        credit.shift(change.rounds * quantum, change.charged)
        # After this router has deleted a client's charges, the computed credit may exceed a
        # quantum.
        if forgotten:
            credit.cap(quantum)
        for worker, charged in change.charged.items():
            if charged < 0 and worker in credit:
                credit[worker] = min(credit[worker], quantum)


class CreditExchange:
    """An implementation of ``Exchanges`` for routers that exchange the credits of clients."""

    name: ClassVar[str]
    credits: WorkerCredits

    @property
    def _shared(self) -> SharedCredit:
        assert self.credits.shared is not None, "join_peers comes first"
        return self.credits.shared

    def join_peers(self) -> None:
        """Begin to share the credits with other routers.

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


Charge = Literal["input", "uncached", "split", "owner", "gpu-time"]


class DispatchCharging:
    """Charging of prompt tokens at dispatch, and of output tokens at the request's end.

    With ``ahead``, a client's mean output is charged at dispatch; the charge is corrected when the
    request ends.
    """

    token_ps: Callable[[], float] | None = None
    """A function that returns a token's GPU time (ps), or None if tokens are charged instead."""

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool = False) -> None:
        self.extend_weight = extend_weight
        self.output_weight = output_weight
        self._answers = MeanAnswers() if ahead else None
        self._ahead: dict[int, float] = {}
        # ``_paid`` maps the id of each unfinished request to the charges that clients paid at its
        # dispatch.
        self._paid: dict[int, dict[str, float]] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts about the experiment.

        Raises UsageError, naming the scheduler, if GPU time cannot be charged.
        """

    def dispatched(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        """Return each client's charge for a request with ``tokens`` charged prompt tokens."""
        paid = self._paid[request.request_id] = self._prompt_charges(request, tokens, worker)
        if self._answers is not None:
            expected = self.output_weight * self._answers.expected(request.client)
            self._ahead[request.request_id] = expected
            paid[request.client] = paid.get(request.client, 0) + expected
        return paid

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self.extend_weight * tokens}

    def end_charge(self, request: Request, output_tokens: int) -> float:
        """Return the charge that is due when a request ends; a negative charge is a refund."""
        self._paid.pop(request.request_id, None)
        cost = self.output_weight * output_tokens
        return cost if self._answers is None else cost - self._ahead.pop(request.request_id, 0)

    def failed(self, request: Request) -> dict[str, float]:
        """Return each client's refund for a failed dispatch."""
        self._ahead.pop(request.request_id, None)
        return self._paid.pop(request.request_id, {})

    def payers(self) -> set[str]:
        return {payer for payers in self._paid.values() for payer in payers}

    def forget_worker(self, worker: int) -> None:
        """Handle the departure of a worker, whose cache is lost."""

    def record_time(self, request: Request, gpu_s: float) -> None:
        """Record the GPU time of a request at its worker, in seconds."""

    def answered(self, client: str, output_tokens: int) -> None:
        if self._answers is not None and output_tokens:
            self._answers.learn(client, output_tokens)

    def forget(self, client: str) -> None:
        if self._answers is not None:
            self._answers.forget(client)


class SharedDispatchCharging(DispatchCharging):
    """Charging of prompts to the clients that share prefixes (see ``SharedCharges``)."""

    def __init__(
        self, extend_weight: int, output_weight: int, sharing: Sharing, *, ahead: bool
    ) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        self._sharing = sharing
        # ``_shared`` maps each worker to the shared prefixes in its cache.
        self._shared: dict[int, SharedCharges] = {}

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        shared = self._shared.setdefault(worker, SharedCharges(self._sharing))
        charges = shared.tokens_by_client(request, tokens)
        return {client: self.extend_weight * due for client, due in charges.items()}

    def forget_worker(self, worker: int) -> None:
        self._shared.pop(worker, None)


class TimeDispatchCharging(DispatchCharging):
    """Charging of a prompt's expected GPU time at dispatch, with a correction at the end."""

    _charges: GPUCharges

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        # ``_took_ps`` maps ids of requests that have just ended to their GPU times (ps).
        self._took_ps: dict[int, int] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        if self._answers is not None:
            raise UsageError(
                f"{name}.outputs = 'ahead': cannot be combined with charge = {GPU_TIME!r}"
            )
        self._charges = gpu_charges(name, setup)
        self.token_ps = self._charges.token_ps

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self._charges.dispatch_charge(request, tokens)}

    def record_time(self, request: Request, gpu_s: float) -> None:
        self._took_ps[request.request_id] = round(gpu_s * PS_PER_S)

    def end_charge(self, request: Request, output_tokens: int) -> float:
        super().end_charge(request, output_tokens)
        took_ps = self._took_ps.pop(request.request_id, 0)
        return took_ps + self._charges.refund_rest(request)

    def failed(self, request: Request) -> dict[str, float]:
        self._charges.refund_rest(request)
        return super().failed(request)


def dispatch_charging(
    extend_weight: int, output_weight: int, charge: Charge, *, ahead: bool
) -> DispatchCharging:
    """Return the charging method that a router's parameters select.

    Args:
        extend_weight: Charge for each prompt token.
        output_weight: Charge for each output token.
        charge: With ``input``, the full prompt is charged ([DLPM] Alg. 2 line 16); with
            ``uncached``, only the part that the chosen worker has not cached. With ``split`` or
            ``owner``, clients that share a prefix at the worker pay for the uncached part
            (``SharedCharges``). With ``gpu-time``, the prompt's expected GPU time is charged at
            dispatch and corrected to the request's true GPU time at the end.
        ahead: Whether a client's mean output is charged at dispatch and corrected at the request's
            end. By default, outputs are charged at the request's end ([DLPM] Alg. 2 line 22).
    """
    if charge == GPU_TIME:
        return TimeDispatchCharging(extend_weight, output_weight, ahead=ahead)
    if charge == "split" or charge == "owner":
        return SharedDispatchCharging(extend_weight, output_weight, charge, ahead=ahead)
    return DispatchCharging(extend_weight, output_weight, ahead=ahead)
