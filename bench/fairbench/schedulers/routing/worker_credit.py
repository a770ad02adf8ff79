"""A client's credit at each worker, and where it has any."""

from __future__ import annotations

from collections.abc import Iterable

from fairbench.schedulers.quanta import rounds_to_credit
from fairbench.schedulers.routing.worker_sets import as_bits


class WorkerCredit(dict[int, float]):
    """Live worker -> credit. ``positive`` are the workers where it is above 0, as bits.

    It changes by one item at a time, or by ``refill``.
    """

    __slots__ = ("positive",)

    def __init__(self, workers: Iterable[int]) -> None:
        super().__init__(dict.fromkeys(workers, 0.0))
        self.positive = 0

    def __setitem__(self, worker: int, credit: float) -> None:
        super().__setitem__(worker, credit)
        if credit > 0:
            self.positive |= 1 << worker
        else:
            self.positive &= ~(1 << worker)

    def __delitem__(self, worker: int) -> None:
        super().__delitem__(worker)
        self.positive &= ~(1 << worker)

    def refill(self, quantum: float, available: Iterable[int]) -> float:
        """Lines 5-6 of [DLPM] Alg. 2: quanta for all workers in debt until one available is not.

        In one go. Precondition: there is an available one, and none is in credit. Answers how often
        the first of them was granted one.
        """
        rounds = min(rounds_to_credit(self[worker], quantum) for worker in available)
        granted = {
            worker: left + min(rounds, rounds_to_credit(left, quantum)) * quantum
            for worker, left in self.items()
            if left <= 0
        }
        self.update(granted)  # at once: this is done for all workers
        self.positive |= as_bits(worker for worker, left in granted.items() if left > 0)
        return rounds
