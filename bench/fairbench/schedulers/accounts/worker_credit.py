"""The credit of a client at each worker, and the workers where the client is in credit."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, MutableMapping

from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.worker_sets import as_bits, members


class WorkerCredit(MutableMapping[int, float]):
    """A mapping worker -> credit. ``positive`` holds the workers with credit above 0, as bits.

    Where a client has never been, its credits are equal: they are one number and a set of workers,
    however many these are. Only those that were set one by one are kept one by one.
    """

    __slots__ = ("_apart", "_level", "_untouched", "positive")

    def __init__(self, workers: int) -> None:
        self._level = 0.0  # the credit at each of the untouched
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
        """Return the sum over all workers."""
        return sum(self._apart.values()) + self._level * self._untouched.bit_count()

    def refill(self, quantum: float, available: int) -> float:
        """Grant quanta at all workers in debt until an available worker has credit.

        This is [DLPM] Alg. 2 lines 5-6, with all rounds in a single step. Precondition: at least
        one worker is available (bits), and none of those is in credit. Returns how many quanta the
        first of them was granted.
        """
        tried = [left for worker, left in self._apart.items() if available >> worker & 1]
        if available & self._untouched:
            tried.append(self._level)
        rounds = min(rounds_to_credit(left, quantum) for left in tried)

        def granted(left: float) -> float:
            return left + min(rounds, rounds_to_credit(left, quantum)) * quantum

        lifted = {worker: granted(left) for worker, left in self._apart.items() if left <= 0}
        self._apart.update(lifted)  # at once: this is done for all workers
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
BATCH = MAX_CLIENTS // 16  # forgotten at once, so that to choose them costs little a client


def to_forget(
    credit: Mapping[str, WorkerCredit], busy: Container[str], batch: int = BATCH
) -> list[str]:
    """Return up to ``batch`` clients to forget, from the longest unused half of the idle ones.

    Clients in ``busy`` are kept. ``credit`` holds each client's credit at each worker, longest
    unused client first. A returning client starts anew without debt. The clients with the most
    credit are therefore forgotten first, since they gain least, and those deepest in debt last.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]
