"""Membership: the present workers, and how workers are added or drained while requests go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.breaker import Breakers
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.health import Health
from fairbench.live.router.problem import Problem

log = logging.getLogger(__name__)


class Membership:
    """Adds and drains workers. A number is never used twice, so that ``workers`` only grows.

    ``follow(worker)`` is called for one that was added, ``unfollow(worker)`` for one that is gone.
    Those who change it raise Problem if it cannot be.
    """

    def __init__(
        self,
        workers: list[WorkerAddress],
        dispatcher: Dispatcher,
        health: Health,
        breakers: Breakers,
        follow: Callable[[int], None],
        unfollow: Callable[[int], None],
    ) -> None:
        self._workers = workers
        self._dispatcher = dispatcher
        self._health = health
        self._breakers = breakers
        self._follow = follow
        self._unfollow = unfollow

    def rows(self) -> list[dict[str, Any]]:
        """Return the state of every worker."""
        return [self.row(worker) for worker in self._dispatcher.flights]

    def row(self, worker: int) -> dict[str, Any]:
        """Return a worker's number, address, state and requests, without its key."""
        address = self._workers[worker]
        return {
            "worker": worker,
            "url": address.url,
            "kv_events": address.kv_events,
            "state": self._state(worker),
            "under_way": len(self._dispatcher.flights.get(worker, ())),
        }

    def _state(self, worker: int) -> str:
        dispatcher = self._dispatcher
        if worker not in dispatcher.flights:
            return "removed"
        if dispatcher.is_draining(worker):
            return "draining"
        if worker in dispatcher.up:
            return "up"
        return "ejected" if self._breakers.is_open(worker) else "down"

    async def add(self, address: WorkerAddress, patience_s: float) -> int:
        """Add a worker and return its number. The worker joins once it is healthy.

        Fails with 409 if it is known already, is this router itself, or the router cannot have
        more.
        """
        self._check_changeable()
        if await self._health.is_this_router(address, patience_s):
            raise Problem(HTTPStatus.CONFLICT, f"{address.url} is this router itself")
        for worker in self._dispatcher.flights:
            if self._workers[worker].url == address.url:
                raise Problem(HTTPStatus.CONFLICT, f"{address.url} is already worker {worker}")
        worker = self._dispatcher.add(followed=address.kv_events is not None)
        self._workers.append(address)
        assert self._workers[worker] is address
        self._breakers.add(worker)
        self._follow(worker)
        log.info("worker %d is added: %s", worker, address.url)
        await asyncio.wait([self._health.suspect(worker)], timeout=patience_s)
        return worker

    def drain(self, worker: int) -> None:
        """Stop sending requests to a worker, and remove it once its requests have finished.

        A second call has no effect. Fails with 404 for an unknown worker. Fails with 409 for the
        only worker that is up, or if the router needs it.
        """
        if worker not in self._dispatcher.flights:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no worker {worker}")
        if self._dispatcher.is_draining(worker):
            return
        self._check_changeable()
        if self._dispatcher.up == {worker}:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"worker {worker} is the only available worker, and cannot be drained",
            )
        log.info("worker %d is being drained", worker)
        self._breakers.forget(worker)

        def removed() -> None:
            self._unfollow(worker)
            log.info("worker %d is removed", worker)

        self._dispatcher.drain(worker, removed)

    def _check_changeable(self) -> None:
        if not self._dispatcher.can_change:
            name = self._dispatcher.router.name
            raise Problem(
                HTTPStatus.CONFLICT, f"workers cannot be added or drained with the router {name}"
            )
