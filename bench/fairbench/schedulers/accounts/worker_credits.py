"""The credit of each client at each worker, refilled in quanta ([DLPM] Alg. 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from fairbench.schedulers.accounts.worker_credit import MAX_CLIENTS, WorkerCredit, to_forget
from fairbench.schedulers.setup import Setup
from fairbench.tenants import Tenants

if TYPE_CHECKING:
    from fairbench.schedulers.peers.credit import CreditChange, SharedCredit


class Workers(Protocol):
    """The live workers of a router, as bits."""

    @property
    def everyone(self) -> int: ...


class WorkerCredits:
    """The credits q_{i,w}. A worker is open to a client that has credit at this worker.

    A credit never exceeds the quantum, and a debt never exceeds one prompt plus the outputs of the
    requests under way there.

    Args:
        quantum: The quantum Q^w of a client of weight 1, in weighted tokens.
        workers: The live workers.
    """

    setup = Setup()

    def __init__(self, quantum: float, workers: Workers) -> None:
        self.quantum = quantum
        self.of: dict[str, WorkerCredit] = {}  # the longest unused client first
        self.unit_of_time: Callable[[], float] | None = None  # of a token, where time is charged
        self.payers: Callable[[], Iterable[str]] = tuple  # of requests under way
        self.on_forget: Callable[[str], None] = lambda client: None
        self.shared: SharedCredit | None = None  # what all routers have charged, if there are more
        self._workers = workers

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the nodes whose credit the client needs and spends."""
        return (client,)

    def quantum_of(self, node: str) -> float:
        """Return the node's quantum (by its weight) in the unit of the charges."""
        quantum = self.quantum * self.setup.weight(node)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def available(self, client: str) -> int:
        """Return the workers where the client is in credit, as bits (lines 3-6).

        If there are none, quanta are granted until there are. Where Algorithm 2 as printed never
        ends, the set is computed again after the refill, which is summed in closed form.
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
        """Return the credit of a client and mark it as just used.

        May forget other clients to make room.
        """
        credit = self.of.pop(node, None)
        if credit is None:
            if len(self.of) >= MAX_CLIENTS:
                self._forget_some()
            credit = WorkerCredit(self._workers.everyone)
        self.of[node] = credit
        return credit

    def _forget_some(self) -> None:
        busy = {node for payer in self.payers() for node in self.nodes(payer)}
        for forgotten in to_forget(self.of, busy):
            del self.of[forgotten]
            if self.shared is not None:
                self.shared.forget(forgotten)
            self.on_forget(forgotten)

    def charge(self, client: str, worker: int, cost: float) -> None:
        """Charge a client, which may be new, for a dispatch to a worker (line 16)."""
        for node in self.nodes(client):
            self._spend(self.credit_of(node), node, worker, cost)

    def settle(self, client: str, worker: int, cost: float) -> None:
        """Charge a client for a request that has ended at a worker (line 22)."""
        for node in self.nodes(client):
            self._spend(self.of[node], node, worker, cost)

    def settle_down(self, client: str, worker: int, cost: float) -> None:
        """Charge a client as ``settle`` does, but let a refund lift credit to a quantum only.

        Args:
            client: Name of the client.
            worker: Number of the worker.
            cost: Charge, in the unit of the credit; negative for a refund.
        """
        for node in self.nodes(client):
            if cost < 0:
                self._give_back(self.of[node], node, worker, -cost)
            else:
                self._spend(self.of[node], node, worker, cost)

    def give_back(self, client: str, worker: int, amount: float) -> None:
        """Refund the charge of a dispatch that has failed.

        Args:
            client: Name of the client.
            worker: Number of the worker.
            amount: Refund, in the unit of the credit; credit rises to a quantum at most.
        """
        for node in self.nodes(client):
            self._give_back(self.credit_of(node), node, worker, amount)

    def _spend(self, credit: WorkerCredit, node: str, worker: int, cost: float) -> None:
        credit.spend(worker, cost)
        if self.shared is not None:
            self.shared.spend(node, worker, cost)

    def _give_back(self, credit: WorkerCredit, node: str, worker: int, amount: float) -> None:
        # Quanta granted since must not lift it above what a credit can be.
        most = min(credit[worker] + amount, self.quantum_of(node))
        before, credit[worker] = credit[worker], max(credit[worker], most)
        if self.shared is not None:
            self.shared.spend(node, worker, before - credit[worker])

    def join(self, worker: int, *, with_quantum: bool = False) -> None:
        """Add a worker, at which no client has debt.

        ``with_quantum`` gives each client a quantum there.
        """
        for node, credit in self.of.items():
            credit[worker] = self.quantum_of(node) if with_quantum else 0.0

    def leave(self, worker: int) -> None:
        """Forget a worker."""
        for credit in self.of.values():
            del credit[worker]

    def hear(self, client: str, change: CreditChange) -> None:
        """Apply the quanta and charges of a client that other routers report."""
        assert self.shared is not None, "join_peers comes first"
        forgotten = self.shared.has_forgotten and client not in self.of
        credit, quantum = self.credit_of(client), self.quantum_of(client)
        credit.shift(change.rounds * quantum, change.charged)
        if forgotten:  # here or there: more than a quantum nobody has
            credit.cap(quantum)
        for worker, charged in change.charged.items():
            if charged < 0 and worker in credit:
                credit[worker] = min(credit[worker], quantum)


class TreeWorkerCredits(WorkerCredits):
    """Credits of tenants and clients.

    A worker is open if all tenants of a client may spend there.
    """

    def nodes(self, client: str) -> tuple[str, ...]:
        return self.setup.lineage(client)


def credits_of(quantum: float, workers: Workers, tenants: Tenants | None) -> WorkerCredits:
    """Return credits of clients at workers, or of tenants too.

    Args:
        quantum: Quantum Q^w of a client of weight 1.
        workers: Live workers.
        tenants: Tenants whose levels have credits, or None for clients only.
    """
    form = WorkerCredits if tenants is None else TreeWorkerCredits
    return form(quantum, workers)
