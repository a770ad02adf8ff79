"""What a saturation detector must do: say when a queue before the cluster may let a request go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fairbench.core import Request
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import FleetView


class Detector(ABC):
    """Whether the cluster takes one more request. Subclass this, one detector a file.

    Pure, like a scheduler: it hears of what is sent and of what is over, and is woken to ``look``.
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
        """The home is awake: poll the workers if it is time."""

    @abstractmethod
    def has_room(self, now_s: float) -> bool:
        """Asked before each request that might go."""

    def wake_s(self, now_s: float) -> float | None:
        """When to wake the home although nothing has happened, None for never."""
        return None

    def on_sent(self, request: Request, worker: int) -> None:
        """The request has gone to that worker."""

    def on_moved(self, request: Request, worker: int | None) -> None:
        """A request that was sent is at this worker now; None: at none any more, and not over."""

    def on_finish(self, request: Request) -> None:
        """A request that was sent is over."""
