"""Drivers that are processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from fairbench.execute.child import Child, start_child
from fairbench.execute.drivers.child import serve
from fairbench.execute.drivers.team import Driver


@dataclass(frozen=True, slots=True)
class CrewHere:
    """A number of drivers on this machine."""

    drivers: int
    serve: Callable[[Connection], None] = serve

    @contextmanager
    def started(self, folder: Path, interrupted: Callable[[], bool]) -> Iterator[list[Driver]]:
        """Start the drivers; they end when their pipes close."""
        children: list[Child] = []
        try:
            children.extend(start_child(self.serve) for _ in range(self.drivers))
            yield [Driver(f"driver-{n}", child.pipe) for n, child in enumerate(children)]
        finally:
            for child in children:
                child.pipe.close()
            for child in children:
                child.process.join()
