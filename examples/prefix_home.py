"""An example of your own router: a request goes to the worker that caches its prompt, if not busy.

    FAIRBENCH_SCHEDULERS=examples/prefix_home.py fairbench run --router prefix-home --dp 4

The same router works with emulated and real servers: ``--backend emulator``, ``fairbench serve``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router

MOST_KNOWN = 100_000  # limit on the segments whose worker is remembered


class PrefixHome(Router):
    """Chooses the worker that served the longest part of the prompt, or the least loaded worker."""

    name = "prefix-home"

    @dataclass(frozen=True)
    class Params:
        """``slack`` is the lead in unfinished requests at which a worker counts as too busy."""

        slack: Annotated[int, Ge(0)] = 8

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self.unfinished = dict.fromkeys(range(workers), 0)  # requests of each worker
        self.homes: dict[str, int] = {}  # the key of a segment -> its last worker

    def route(self, request: Request, now_s: float) -> int:
        least = min(self.unfinished, key=self.unfinished.__getitem__)
        worker = self._home(request.prompt, least)
        if self.unfinished[worker] > self.unfinished[least] + self.params.slack:
            worker = least
        for segment in request.prompt:
            self.homes.pop(segment.key, None)  # so that the oldest segments come first
            self.homes[segment.key] = worker
        while len(self.homes) > MOST_KNOWN:
            del self.homes[next(iter(self.homes))]
        self.unfinished[worker] += 1
        return worker

    def _home(self, prompt: Prompt, otherwise: int) -> int:
        """Return the worker of the last segment that an available worker has seen."""
        seen = (self.homes.get(segment.key) for segment in reversed(prompt))
        return next((worker for worker in seen if worker in self.unfinished), otherwise)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if worker in self.unfinished:
            self.unfinished[worker] -= 1

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.unfinished[worker] = 0

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        del self.unfinished[worker]
