"""Saturation: when a queue before the cluster may let a request go."""

from __future__ import annotations

from typing import Protocol

from fairbench.schedulers.views import FleetView


class Room(Protocol):
    """Whether the cluster takes one more request."""

    def has_room(self) -> bool:
        """Asked before each request that might go."""
        ...


class AlwaysRoom:
    """Nothing but the router holds requests back."""

    def has_room(self) -> bool:
        return True


class InFlightLimit:
    """At most ``per_worker`` requests under way for each worker that is up."""

    def __init__(self, per_worker: int, fleet: FleetView) -> None:
        self._per_worker = per_worker
        self._fleet = fleet

    def has_room(self) -> bool:
        workers = self._fleet.workers()
        under_way = sum(self._fleet.load(worker).in_flight for worker in workers)
        return under_way < self._per_worker * len(workers)
