"""Clients with known rates and burstiness only: a renewal process for each window.

The number of requests of a window equals the measured number. The gaps between them, and those to
the window's ends, are drawn from the law with the window's coefficient of variation and scaled to
fill the window: a renewal process, given the number of requests. With a coefficient of 1 and Gamma
gaps, this is a Poisson process.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf, lgamma, log1p

from fairbench.core import Segment
from fairbench.errors import DataError
from fairbench.streams import stream
from fairbench.workloads.items import Call, Recorded
from fairbench.workloads.traces.format import TracedProgram
from fairbench.workloads.traces.rows import Row
from fairbench.workloads.traces.table import Table, TableBuilder

LAWS = ("Gamma", "Weibull")
CONSTANT_BELOW = 1e-3  # coefficient of variation below which gaps are constant


@dataclass(frozen=True, slots=True)
class Window:
    """A window of ``width_s`` seconds from ``start_s`` with ``count`` requests."""

    start_s: float
    width_s: float
    count: int
    cv: float
    law: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths that apply from ``start_s`` on, with cumulative weights."""

    start_s: float
    inputs: tuple[int, ...]
    input_sums: tuple[float, ...]
    outputs: tuple[int, ...]
    output_sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WindowedClient:
    """Windows and lengths in order of time. Lengths are unknown if there are none."""

    name: str
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]


class WindowedTrace:
    """A ``Trace`` in which prompts share nothing and each request is a program."""

    drawn, pauses = True, False
    synthetic: tuple[str, ...] = ()
    who_left_out = "requests of clients without tables of lengths"

    def __init__(self, clients: tuple[WindowedClient, ...], left_out: int, shown: str) -> None:
        self._clients, self._shown = clients, shown
        self.clients = tuple(client.name for client in clients)
        self.left_out = left_out
        windows = [window for client in clients for window in client.windows]
        self._start_s = min(window.start_s for window in windows)
        end_s = max(window.start_s + window.width_s for window in windows)
        self.span_s = end_s - self._start_s

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        for number, (at_s, read, written) in enumerate(self._requests(client, rng)):
            key = f"trace/{client}/{number}"
            call = Call((Segment(key, read),), written, written)
            yield TracedProgram(at_s / speed, Recorded(key, 0, calls=(call,)))

    def count(self, client: int, until_s: float) -> float:
        begun = 0.0
        for window in self._clients[client].windows:
            within_s = until_s - (window.start_s - self._start_s)
            begun += window.count * min(1.0, max(0.0, within_s / window.width_s))
        return begun

    def table(self, seed: int, until_s: float = inf) -> Table:
        """Return the requests that a run with this seed draws.

        Raises DataError if there are too many.
        """
        builder = TableBuilder(self._shown)
        builder.left_out, builder.who_left_out = self.left_out, self.who_left_out
        try:
            self._draw(builder, seed, until_s)
        except DataError:
            count = sum(self.count(client, until_s) for client in range(len(self.clients)))
            raise DataError(
                f"{self._shown}: {count:,.0f} requests do not fit into memory; read only "
                "the first seconds, with --to"
            ) from None
        return builder.table()

    def _draw(self, builder: TableBuilder, seed: int, until_s: float) -> None:
        for number, name in enumerate(self.clients):
            for at_s, read, written in self._requests(number, stream(seed, f"{name}/arrivals")):
                if at_s >= until_s:
                    break
                builder.add(Row(round(at_s * 1e9), name, read, written))

    def _requests(self, client: int, rng: random.Random) -> Iterator[tuple[float, int, int]]:
        """Yield the time from the start of the trace and both lengths of each request."""
        one = self._clients[client]
        starts = [lengths.start_s for lengths in one.lengths]
        for window in one.windows:
            lengths = one.lengths[max(0, bisect_right(starts, window.start_s) - 1)]
            for at_s in times_in(window, rng):
                read = _drawn(lengths.inputs, lengths.input_sums, rng)
                written = _drawn(lengths.outputs, lengths.output_sums, rng)
                yield at_s - self._start_s, read, written


def times_in(window: Window, rng: random.Random) -> list[float]:
    """Return the request times of a window, in order."""
    gaps = [1.0] * (window.count + 1)
    if window.cv > CONSTANT_BELOW:
        if window.law == "Gamma":
            gaps = [rng.gammavariate(1 / window.cv**2, 1.0) for _ in gaps]
        else:
            shape = weibull_shape(window.cv)
            gaps = [rng.weibullvariate(1.0, shape) for _ in gaps]
    sums = list(accumulate(gaps))
    scale = window.width_s / sums[-1] if sums[-1] > 0 else 0.0
    last_s = window.start_s + window.width_s
    return [min(last_s, window.start_s + total * scale) for total in sums[:-1]]


@lru_cache(maxsize=4096)
def weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution with a coefficient of variation up to 4,000."""
    low, high, wanted = 0.1, 2000.0, log1p(cv * cv)  # its second moment over the square of the mean
    for _ in range(60):
        middle = (low * high) ** 0.5
        if lgamma(1 + 2 / middle) - 2 * lgamma(1 + 1 / middle) > wanted:
            low = middle
        else:
            high = middle
    return low


def _drawn(values: tuple[int, ...], sums: tuple[float, ...], rng: random.Random) -> int:
    place = bisect_right(sums, rng.random() * sums[-1])
    return values[min(place, len(values) - 1)]
