"""The credit of each client at each worker, refilled in quanta ([DLPM] Alg. 2)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Protocol

from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.worker_sets import as_bits, members

if TYPE_CHECKING:
    from fairbench.schedulers.peers.totals import CreditChange, SharedCredit


class WorkerCredit(MutableMapping[int, float]):
    """A mapping worker -> credit. ``positive`` holds the workers with credit above 0, as bits.

    At workers where a client has never been, its credits are equal, so one number and a set of
    workers represent them. Only credits that were set individually are kept individually.
    """

    __slots__ = ("_apart", "_level", "_untouched", "positive")

    def __init__(self, workers: int) -> None:
        self._level = 0.0  # the credit at each untouched worker
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
        """Perform ``self[worker] -= cost`` quickly, since it happens twice per request."""
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

        This is [DLPM] Alg. 2 lines 5-6, with all rounds in a single step. Precondition: at least
        one worker is available (bits), and no available worker is in credit. Returns the number of
        quanta granted to the first of these workers.
        """
        tried = [left for worker, left in self._apart.items() if available >> worker & 1]
        if available & self._untouched:
            tried.append(self._level)
        rounds = min(rounds_to_credit(left, quantum) for left in tried)

        def granted(left: float) -> float:
            return left + min(rounds, rounds_to_credit(left, quantum)) * quantum

        lifted = {worker: granted(left) for worker, left in self._apart.items() if left <= 0}
        self._apart.update(lifted)  # computed directly, because this is done for all workers
        self.positive |= as_bits(worker for worker, left in lifted.items() if left > 0)
        if self._level <= 0:
            self._set_level(granted(self._level))
        return rounds

    def shift(self, more: float, less: Mapping[int, float]) -> None:
        """Add ``more`` at every worker, minus the amounts in ``less`` at some."""
        changed = {w: self[w] + (more - less[w]) for w in less if less[w] and w in self}
        if more:
            self._set_level(self._level + more)
            changed = {w: left + more for w, left in self._apart.items()} | changed
        self.update(changed)

    def cap(self, most: float) -> None:
        """Limit the credit at every worker to ``most``."""
        self._set_level(min(self._level, most))
        self.update({w: most for w, left in self._apart.items() if left > most})

    def _set_level(self, level: float) -> None:
        self._level = level
        if level > 0:
            self.positive |= self._untouched
        else:
            self.positive &= ~self._untouched


MAX_CLIENTS = 10_000
# clients forgotten together, so that choosing them costs little per client
BATCH = MAX_CLIENTS // 16


def to_forget(
    credit: Mapping[str, WorkerCredit], busy: Container[str], batch: int = BATCH
) -> list[str]:
    """Return up to ``batch`` clients to forget, from the longest unused half of the idle ones.

    Clients in ``busy`` are kept. ``credit`` holds each client's credit at each worker, longest
    unused client first. A returning client starts again without debt. The clients with the most
    credit are therefore forgotten first, because they gain least, and those deepest in debt last.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]


class Workers(Protocol):
    """The live workers of a router, as bits."""

    @property
    def everyone(self) -> int: ...


class WorkerCredits:
    """The credits q_{i,w}. A worker is open to a client that has credit at this worker.

    A credit never exceeds the quantum, and a debt never exceeds one prompt plus the outputs of the
    requests in progress there.

    Args:
        quantum: The quantum Q^w of a client of weight 1, in weighted tokens.
        workers: The live workers.
    """

    setup = Setup()

    def __init__(self, quantum: float, workers: Workers) -> None:
        self.quantum = quantum
        self.of: dict[str, WorkerCredit] = {}  # the longest unused client first
        # returns the time of a token, if time is charged
        self.unit_of_time: Callable[[], float] | None = None
        # returns the clients that pay for requests in progress
        self.payers: Callable[[], Iterable[str]] = tuple
        self.on_forget: Callable[[str], None] = lambda client: None
        self.shared: SharedCredit | None = None  # the charges of all routers, if there are several
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

        If there are none, quanta are granted until there are. If Algorithm 2 as printed never ends,
        the set is computed again after the refill, which is summed in closed form.
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
        """Return the credit of a client, which is now in use; this may forget others."""
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
        """Charge a client as ``settle`` does, but let a refund lift credit to a quantum only."""
        for node in self.nodes(client):
            if cost < 0:
                self._give_back(self.of[node], node, worker, -cost)
            else:
                self._spend(self.of[node], node, worker, cost)

    def give_back(self, client: str, worker: int, amount: float) -> None:
        """Refund the charge of a dispatch that has failed; credit rises to a quantum at most."""
        for node in self.nodes(client):
            self._give_back(self.credit_of(node), node, worker, amount)

    def _spend(self, credit: WorkerCredit, node: str, worker: int, cost: float) -> None:
        credit.spend(worker, cost)
        if self.shared is not None:
            self.shared.spend(node, worker, cost)

    def _give_back(self, credit: WorkerCredit, node: str, worker: int, amount: float) -> None:
        # Quanta granted in the meantime must not lift it above the limit of a credit.
        most = min(credit[worker] + amount, self.quantum_of(node))
        before, credit[worker] = credit[worker], max(credit[worker], most)
        if self.shared is not None:
            self.shared.spend(node, worker, before - credit[worker])

    def join(self, worker: int, *, with_quantum: bool = False) -> None:
        """Add a worker, at which no client has debt; with ``with_quantum`` each has a quantum."""
        for node, credit in self.of.items():
            credit[worker] = self.quantum_of(node) if with_quantum else 0.0

    def leave(self, worker: int) -> None:
        for credit in self.of.values():
            del credit[worker]

    def hear(self, client: str, change: CreditChange) -> None:
        """Apply the quanta and charges of a client that other routers report."""
        assert self.shared is not None, "join_peers comes first"
        forgotten = self.shared.has_forgotten and client not in self.of
        credit, quantum = self.credit_of(client), self.quantum_of(client)
        credit.shift(change.rounds * quantum, change.charged)
        if forgotten:  # forgotten here or at another router: no client has more than a quantum
            credit.cap(quantum)
        for worker, charged in change.charged.items():
            if charged < 0 and worker in credit:
                credit[worker] = min(credit[worker], quantum)
