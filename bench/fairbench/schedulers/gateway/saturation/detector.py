"""The interface of a saturation detector, which says when the queue may release a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fairbench.core import Request
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import FleetView


class Detector(ABC):
    """A test of whether the cluster takes one more request. Subclass it, one detector per file.

    A detector is pure, like a scheduler: it is told of sent and finished requests, and is woken to
    ``look``.
    """

    name: ClassVar[str]
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Told once, before the first request; ``setup.fleet`` is every worker's load."""
        self.setup = setup

    @property
    def fleet(self) -> FleetView:
        """The workers. Precondition: ``prepare`` was told of them."""
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        return self.setup.fleet

    def look(self, now_s: float) -> None:
        """Poll the workers if it is time, as the host is awake."""

    @abstractmethod
    def has_room(self, now_s: float) -> bool:
        """Return whether there is room; asked before each request that might go."""

    def wake_s(self, now_s: float) -> float | None:
        """Return when to wake the host without any event, None for never."""
        return None

    def on_sent(self, request: Request, worker: int) -> None:
        """Handle a request that went to a worker."""

    def on_moved(self, request: Request, worker: int | None) -> None:
        """Record a sent request's present worker; None means none, though it is not over."""

    def on_finish(self, request: Request) -> None:
        """Handle the end of a request that was sent."""
