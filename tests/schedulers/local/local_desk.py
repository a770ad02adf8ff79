"""A scheduler with a plain waiting list, driven by hand."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.views import ListView

PATIENCE = 10_000  # more candidates in one pass count as an endless pass


class Desk:
    """A desk on which a test decides what is cached (``matched``), what arrives and what fits."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self.matched: dict[Request, int] = {}
        self.queue: list[Request] = []
        self.view = ListView(self.queue, lambda request: self.matched.get(request, 0))
        self.offered: list[Request] = []  # requests of the last pass
        self._seen: set[Request] = set()

    def arrive(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.on_arrival(request, self.view, 0.0)
            self.view.enter(request)

    def retract(self, request: Request) -> None:
        self.scheduler.on_retract(request, self.view, 0.0)
        self.view.enter(request)

    def run_pass(
        self, fits: Callable[[Request], bool] = lambda _: True, at_most: int = PATIENCE
    ) -> list[Request]:
        """Run a pass that admits what fits, up to ``at_most``. Return the admitted requests."""
        self.offered = []
        admitted: list[Request] = []

        def try_admit(request: Request) -> Tried:
            self.offered.append(request)
            assert len(self.offered) < PATIENCE, "the pass does not end"
            if not fits(request):
                return Tried.NO_ROOM
            self._admit(request)
            admitted.append(request)
            return Tried.LAST if len(admitted) == at_most else Tried.ADMITTED

        drive(self.scheduler.select(self.view, 0.0), try_admit)
        return admitted

    def _admit(self, request: Request) -> None:
        self.view.leave(request)
        extend = request.input_tokens - self.matched.get(request, 0)
        self.scheduler.on_admitted(request, extend, request in self._seen)
        self._seen.add(request)
