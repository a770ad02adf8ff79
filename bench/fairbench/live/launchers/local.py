"""Servers on this machine, as children of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fairbench.live.launchers.base import Wanted
from fairbench.live.processes.gpus import server_gpus
from fairbench.live.processes.process import LocalPlace, Place


class LocalLauncher:
    """Gives each replica its own GPUs on this machine."""

    def check(self, wanted: Wanted) -> None:
        self._places(wanted)

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[Place]]:
        yield self._places(wanted)

    def _places(self, wanted: Wanted) -> list[LocalPlace]:
        python = wanted.python.find(wanted.chosen)
        if not wanted.gpus or wanted.python.needs_no_gpu(python):
            return [LocalPlace(python)] * wanted.replicas
        gpus = server_gpus(dp=wanted.replicas, tp=wanted.gpus, share=wanted.share_gpus)
        return [LocalPlace(python, own) for own in gpus]
