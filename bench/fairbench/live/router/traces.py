"""Traces: the facts about each request for a trace collector, without its text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairbench.live.router.charges import NOTHING, Charge


@dataclass(slots=True)
class Trace:
    """The trace of one request: last worker, seconds queued, outcome, and charge.

    ``client`` is None until the client is known.
    """

    client: str | None = None
    worker: int | None = None
    held_s: float = 0.0
    outcome: str = ""
    charge: Charge = NOTHING

    def ended(self, worker: int, outcome: str, charge: Charge = NOTHING) -> None:
        """Record the end at this worker; another worker may be tried.

        Args:
            worker: Number of the worker.
            outcome: Outcome of the request at this worker.
            charge: Tokens booked, added to those of earlier workers.
        """
        self.worker, self.outcome = worker, outcome
        self.charge = Charge(*map(sum, zip(self.charge, charge, strict=True)))


class Traces:
    """A tracer that exports nothing."""

    @contextmanager
    def request(self, path: str, sent: dict[str, str]) -> Iterator[Trace]:
        """Trace a request until the block ends; ``sent`` are the headers for its worker."""
        yield Trace()

    def close(self) -> None:
        """Export the remaining spans, if that is possible within seconds."""
