"""The content of a trace after reading: clients, and the programs of each client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

from fairbench.workloads.recorded_calls import Recorded
from fairbench.workloads.traces.table import Table


class TracedProgram(NamedTuple):
    """A recorded program and its time, in seconds from the beginning of the trace."""

    at_s: float
    item: Recorded


class Trace(Protocol):
    """The traffic of a file, by client.

    ``synthetic``: what of it nobody recorded, as the file says itself. ``drawn``: its times and
    lengths are drawn anew for each seed, from what was measured. ``pauses``: whether a program has
    several calls, with time between them.
    """

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def span_s(self) -> float: ...

    @property
    def drawn(self) -> bool: ...

    @property
    def synthetic(self) -> tuple[str, ...]: ...

    @property
    def pauses(self) -> bool: ...

    @property
    def left_out(self) -> int:
        """Return the number of requests of the file that are not in the trace."""
        ...

    @property
    def who_left_out(self) -> str:
        """Return a description of the requests left out, by default "failed requests"."""
        ...

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        """Yield a client's programs in time order, with all times divided by ``speed``."""
        ...

    def count(self, client: int, until_s: float) -> float:
        """Return the number of programs that a client begins before a time, or an estimate."""
        ...

    def table(self, seed: int, until_s: float = inf) -> Table:
        """Return the requests, at least those before a time; the seed draws random parts."""
        ...
