"""Launchers find places for the replicas of an experiment, and release them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from fairbench.live.processes.gpus import server_gpus
from fairbench.live.processes.process import LocalPlace, Place
from fairbench.live.processes.server_python import OWN, ServerPython


@dataclass(frozen=True, slots=True)
class Wanted:
    """The servers that an experiment needs: ``replicas`` replicas with ``gpus`` GPUs each.

    - ``chosen`` is the Python that the user named, or None.
    - ``spread`` places replicas on different machines as far as possible.
    - ``name`` is the name of a replica.
    - ``asked`` is the user's setting of the number, with ``{}`` for the number.
    """

    replicas: int
    python: ServerPython = OWN
    chosen: str | None = None
    gpus: int = 0
    share_gpus: bool = False
    spread: bool = False
    name: str = "worker"
    asked: str = "dp = {}"


class Launcher(Protocol):
    """A way to start servers."""

    def check(self, wanted: Wanted) -> None:
        """Raise UsageError, before anything is started, if the places are not available."""

    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> AbstractContextManager[Sequence[Place]]:
        """Yield a place for each replica. Processes that still run there end with the block.

        Raises UsageError if there are too few places or a place is unfit, RunFailed if no decision
        came within ``timeout_s``, KeyboardInterrupt once ``interrupted``.
        """


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
