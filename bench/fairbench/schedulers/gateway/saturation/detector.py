"""The interface of a saturation detector, which decides when the queue may release a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fairbench.core import Request
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import FleetView


class Detector(ABC):
    """A test of whether the cluster has room for one more request.

    Subclass this, one detector per file.

    A detector is pure, like a scheduler: it receives sent and finished requests, and is woken to
    ``look``.
    """

    name: ClassVar[str]
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive the facts of the experiment, once, before the first request.

        ``setup.fleet`` has loads.
        """
        self.setup = setup

    @property
    def fleet(self) -> FleetView:
        """The workers. Precondition: ``prepare`` was called."""
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        return self.setup.fleet

    def look(self, now_s: float) -> None:
        """Poll the workers if a poll is due, because the host is awake."""

    @abstractmethod
    def has_room(self, now_s: float) -> bool:
        """Return whether there is room; called before each request that might be released."""

    def wake_s(self, now_s: float) -> float | None:
        """Return the time at which to wake the host without an event, or None for never."""
        return None

    def on_sent(self, request: Request, worker: int) -> None:
        """Handle a request that was sent to a worker."""

    def on_moved(self, request: Request, worker: int | None) -> None:
        """Record the present worker of a sent request; None if it has none but is not over."""

    def on_finish(self, request: Request) -> None:
        """Handle the end of a request that was sent to a worker."""


class AlwaysRoom(Detector):
    """Sends every request immediately, so that only the engines' own queues order them."""

    name = "none"
    Params = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        pass

    def has_room(self, now_s: float) -> bool:
        return True
