"""Backlogs: the unfinished work of each client at each worker, and how fair sharing divides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairbench.schedulers.routing.backlog import Backlog, TenantBacklog
from fairbench.schedulers.routing.finish_bounds import FinishBounds
from fairbench.schedulers.routing.finishes import FEW


class Backlogs(dict[int, Backlog | TenantBacklog]):
    """The backlog of each worker. With ``lineage`` clients are leaves of a tree of tenants."""

    def __init__(
        self,
        workers: Iterable[int],
        weight: Callable[[str], float],
        lineage: Callable[[str], tuple[str, ...]] | None,
    ) -> None:
        self._weight = weight
        self._lineage = lineage
        self._bounds: FinishBounds | None = None  # bounds of a large fleet, computed on demand
        super().__init__({worker: self._empty() for worker in workers})

    def _empty(self) -> Backlog | TenantBacklog:
        if self._lineage is None:
            return Backlog(self._weight)
        return TenantBacklog(self._weight, self._lineage)

    def add(self, worker: int, request_id: int, client: str, work: int) -> None:
        self[worker].add(request_id, client, work)
        self._changed(worker, client)

    def remove(self, worker: int, request_id: int, client: str) -> None:
        self[worker].remove(request_id)
        self._changed(worker, client)

    def join(self, worker: int) -> None:
        self[worker] = self._empty()
        self._bounds = None

    def leave(self, worker: int) -> None:
        del self[worker]
        self._bounds = None

    def reweigh(self) -> None:
        self._bounds = None
        for backlog in self.values():
            backlog.reweigh()

    def bounds(self) -> FinishBounds | None:
        """Return the finish bounds; None for few workers or a tree of tenants."""
        if self._bounds is None and len(self) > FEW and self._lineage is None:
            self._bounds = FinishBounds(self._weight, max(self) + 1)
            for worker, backlog in self.items():
                for client in backlog.clients() if isinstance(backlog, Backlog) else ():
                    self._changed(worker, client)
        return self._bounds

    def _changed(self, worker: int, client: str) -> None:
        backlog = self[worker]
        if self._bounds is not None and isinstance(backlog, Backlog):
            self._bounds.set(worker, client, backlog.work(client))
