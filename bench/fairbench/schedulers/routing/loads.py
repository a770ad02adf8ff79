"""Loads of workers, stored so that no decision has to examine each of a thousand workers."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from fairbench.schedulers.worker_sets import members

FEW = 16  # number of workers that are examined one by one


class Loads:
    """The load L by worker, and the workers by load. Sets of workers are bits."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._with: dict[int, int] = {}  # L in microseconds -> the workers with this load
        self._different = SortedList()

    def __getitem__(self, worker: int) -> int:
        return self._of[worker]

    def put(self, worker: int, load_us: int) -> None:
        if self._of.get(worker) == load_us:
            return
        self.drop(worker)
        self._of[worker] = load_us
        if load_us not in self._with:
            self._different.add(load_us)
        self._with[load_us] = self._with.get(load_us, 0) | 1 << worker

    def drop(self, worker: int) -> None:
        load_us = self._of.pop(worker, None)
        if load_us is None:
            return
        self._with[load_us] ^= 1 << worker
        if not self._with[load_us]:
            del self._with[load_us]
            self._different.remove(load_us)

    @property
    def lightest_us(self) -> int:
        least: int = self._different[0]
        return least

    @property
    def heaviest_us(self) -> int:
        most: int = self._different[-1]
        return most

    def ascending(self, among: int) -> Iterator[tuple[int, int]]:
        """Yield the loads of a set of workers, least first, with the workers of each load."""
        if among.bit_count() <= FEW:
            found: dict[int, int] = {}
            for worker in members(among):
                load_us = self._of[worker]
                found[load_us] = found.get(load_us, 0) | 1 << worker
            yield from sorted(found.items())
            return
        for load_us in self._different:
            if workers := self._with[load_us] & among:
                yield load_us, workers
                among ^= workers
                if not among:
                    return

    def lightest(self, among: int) -> int:
        """Return the workers (bits) of least load in a non-empty set."""
        return next(self.ascending(among))[1]
