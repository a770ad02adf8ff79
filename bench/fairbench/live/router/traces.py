"""Traces: what there is to tell of each request to a system that collects them. No text of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairbench.live.router.charges import NOTHING, Charge


@dataclass(slots=True)
class Trace:
    """One request: its last worker, seconds held, how it ended, and what it is booked with.

    ``client`` is None until it is known whose it is.
    """

    client: str | None = None
    worker: int | None = None
    held_s: float = 0.0
    outcome: str = ""
    charge: Charge = NOTHING

    def ended(self, worker: int, outcome: str, charge: Charge = NOTHING) -> None:
        """It has ended at this worker, and may be tried at another one."""
        self.worker, self.outcome = worker, outcome
        self.charge = Charge(*map(sum, zip(self.charge, charge, strict=True)))


class Traces:
    """Nothing is told to anybody."""

    @contextmanager
    def request(self, path: str, sent: dict[str, str]) -> Iterator[Trace]:
        """One request, until the block ends; ``sent`` are the headers that its worker will get."""
        yield Trace()

    def close(self) -> None:
        """What was not told yet is told now, if that can be within seconds."""
