"""Servers on this machine, as children of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fairbench.live.launchers.base import PATIENCE_S, Wanted
from fairbench.live.processes.gpus import server_gpus
from fairbench.live.processes.place import LocalPlace, Place


class LocalLauncher:
    """Gives each replica its own GPUs on this machine."""

    def check(self, wanted: Wanted) -> None:
        """Check that the Python and the GPUs are available."""
        self._places(wanted)

    @contextmanager
    def places(
        self,
        wanted: Wanted,
        *,
        timeout_s: float = PATIENCE_S,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[Sequence[Place]]:
        """Yield the places, which are available at once.

        Args:
            wanted: Servers that the experiment needs.
            timeout_s: Patience in seconds; not used by this launcher.
            interrupted: Not used by this launcher.
        """
        yield self._places(wanted)

    def _places(self, wanted: Wanted) -> list[LocalPlace]:
        python = wanted.python.find(wanted.chosen)
        if not wanted.gpus or wanted.python.needs_no_gpu(python):
            return [LocalPlace(python)] * wanted.replicas
        gpus = server_gpus(dp=wanted.replicas, tp=wanted.gpus, share=wanted.share_gpus)
        return [LocalPlace(python, own) for own in gpus]
