"""The memory log: every change in a client's share of a replica's KV memory."""

from __future__ import annotations

from fairbench.sim.clock import Clock
from fairbench.sim.records.columns import Columns

NOBODY = -1
MEMORY_COLUMNS = ("at_ps", "worker", "client", "holders", "change", "by")


class MemoryLog(Columns):
    """A log with a row per change: ``client`` holds ``change`` more tokens.

    ``holders`` is the number of clients that hold each of these tokens, the client included. ``by``
    is the client for whose requests the tokens were evicted, or -1 without an eviction.
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(MEMORY_COLUMNS)
        self.index = {client: number for number, client in enumerate(clients)}


class WorkerMemoryLog:
    """The memory log that one replica writes."""

    def __init__(self, log: MemoryLog, clock: Clock, worker: int) -> None:
        self._log = log
        self._clock = clock
        self._worker = worker

    @property
    def now_ps(self) -> int:
        return self._clock.now_ps

    def change(self, client: str, holders: int, change: int, by: str | None = None) -> None:
        """Record that the client holds ``change`` more tokens with ``holders`` - 1 others."""
        index = self._log.index
        caused = NOBODY if by is None else index[by]
        self._log.append(self._clock.now_ps, self._worker, index[client], holders, change, caused)
