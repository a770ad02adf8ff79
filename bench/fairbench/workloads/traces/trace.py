"""What a trace provides once it is read: clients, and the programs of each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

from fairbench.workloads.recorded_calls import Recorded
from fairbench.workloads.traces.table import Table


class TracedProgram(NamedTuple):
    """A program as it was recorded, and when, in seconds from the beginning of the trace."""

    at_s: float
    item: Recorded


class Trace(Protocol):
    """The traffic of a file, by client.

    ``synthetic``: what of it nobody recorded, as the file says itself.
    ``drawn``: its times and lengths are drawn anew for each seed, from what was measured.
    ``pauses``: whether a program has several calls, with time between them.
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
        """How many requests of the file are none of the trace."""
        ...

    @property
    def who_left_out(self) -> str:
        """Which those are: "failed requests", unless the format knows of others."""
        ...

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        """A client's, in order of time, with all times divided by ``speed``."""
        ...

    def count(self, client: int, until_s: float) -> float:
        """How many programs a client begins before that time; of drawn ones, about."""
        ...

    def table(self, seed: int, until_s: float = inf) -> Table:
        """Its requests, those before a time at least; what is drawn is drawn by this seed."""
        ...
