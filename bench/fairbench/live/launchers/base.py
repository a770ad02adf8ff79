"""The launcher: finds places for the replicas of an experiment, and lets go of them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fairbench.live.processes.place import Place
from fairbench.live.processes.server_python import OWN, ServerPython

PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the servers of an experiment need: so many replicas, each with so many ``gpus``.

    ``chosen`` is the Python that the user named, None if none. ``spread``: on different machines
    as far as there are so many. ``name`` is what one is called, and ``asked`` how the user says how
    many, ``{}`` for the number.
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
    """One way to start servers."""

    def check(self, wanted: Wanted) -> None:
        """Raise UsageError, before anything is started, if they cannot be had."""
        ...

    def places(
        self,
        wanted: Wanted,
        *,
        timeout_s: float = PATIENCE_S,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> AbstractContextManager[Sequence[Place]]:
        """A place for each replica, inside. Whatever still runs there ends with the block.

        Raises UsageError if there are too few or one is not fit, RunFailed if that does not turn
        out within ``timeout_s``, KeyboardInterrupt once ``interrupted``.
        """
        ...
