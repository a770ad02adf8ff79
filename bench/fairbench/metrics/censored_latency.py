"""Latency percentiles that stay correct if some programs never finished.

Requests unfinished at the end are right-censored: their latency is a lower bound. Refused requests
have an infinite latency. A metric without either would favour the scheduler that starved them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import in_order, spread
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Facts,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
)


class Percentile(NamedTuple):
    """A percentile in seconds; if ``censored``, a lower bound that prints as "> x s".

    The value is NaN for an empty sample, and infinite if it falls among refused ones.
    """

    value_s: float
    censored: bool


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Latencies in seconds: known ones, lower bounds, and the number of refused ones."""

    known_s: Floats
    more_than_s: Floats
    refused: int

    @property
    def n(self) -> int:
        """The size of the sample, including censored and refused entries."""
        return len(self.known_s) + len(self.more_than_s) + self.refused


def pooled(samples: Sequence[Sample]) -> Sample:
    """Return the union of the samples."""
    return Sample(
        np.concatenate([one.known_s for one in samples]),
        np.concatenate([one.more_than_s for one in samples]),
        sum(one.refused for one in samples),
    )


class Ranked:
    """Sorted samples of all clients, from which percentiles are read."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self._n = np.array([sample.n for sample in samples], dtype=np.int64)
        self._begin = np.cumsum(self._n) - self._n
        known = [sample.known_s for sample in samples]
        bounds = [sample.more_than_s for sample in samples]
        refused = [sample.refused for sample in samples]
        every = np.arange(len(samples))
        counts = [list(map(len, known)), list(map(len, bounds)), refused]
        owner = np.concatenate([np.repeat(every, count) for count in counts])
        values = np.concatenate([np.empty(0), *known, *bounds, np.full(sum(refused), np.inf)])
        unknown = np.repeat([False, True, False], [sum(count) for count in counts])
        # A lower bound ranks above an equal known value, because its real latency is larger.
        order = np.lexsort((unknown, values, owner))
        self._least, self._unknown = values[order], unknown[order]
        self._most = self._least
        if unknown.any():
            most = np.where(unknown, np.inf, values)
            self._most = most[np.lexsort((most, owner))]

    def percentiles(self, percent: float) -> list[Percentile]:
        """Return the ``percentile`` of each sample."""
        value_s, censored = np.full(len(self._n), np.nan), np.zeros(len(self._n), dtype=np.bool_)
        some = np.flatnonzero(self._n)
        rank = (self._n[some] - 1) * percent / 100
        low, high = (self._begin[some] + end(rank).astype(np.int64) for end in (np.floor, np.ceil))
        part = rank - np.floor(rank)
        least = _interpolate(self._least, low, high, part)
        open_ended = least != _interpolate(self._most, low, high, part)
        unsure = self._unknown[low] | self._unknown[high]
        # Otherwise the percentile may equal this known value, if the latencies censored below it
        # are short.
        below = np.where(open_ended & ~unsure, np.nextafter(least, -np.inf), least)
        value_s[some], censored[some] = below, open_ended
        return list(map(Percentile, value_s.tolist(), censored.tolist()))


def percentile(sample: Sample, percent: float) -> Percentile:
    """Return the percentile by linear interpolation between order statistics, as numpy does.

    The value is exact if the censored latencies cannot change it. Otherwise the value is the
    largest certain lower bound.
    """
    return Ranked([sample]).percentiles(percent)[0]


def mean_percentile(percentiles: list[Percentile]) -> Percentile:
    """Return the mean of clients' percentiles; censored or NaN if any of them is."""
    if not percentiles:
        return Percentile(float("nan"), False)
    mean = sum(p.value_s for p in percentiles) / len(percentiles)
    return Percentile(mean, any(p.censored for p in percentiles))


def _interpolate(ascending: Floats, low: Ints, high: Ints, part: Floats) -> Floats:
    """Interpolate between two positions; infinite if an infinite value contributes."""
    below, above = ascending[low], ascending[high]
    with np.errstate(invalid="ignore"):
        between = below + part * (above - below)
    found: Floats = np.where(np.isinf(below) | np.isinf(above) | (part == 0), above, between)
    return found


def samples(requests: Requests, programs: Programs, facts: Facts) -> list[Sample]:
    """Return each client's latencies of the programs that arrived in the window of ``facts``."""
    arrived = facts.window.holds(programs.arrival_s)
    if facts.latency == "ttft":
        return _first_tokens(requests, programs, arrived, facts)
    return _of_programs(programs, arrived, facts)


def _of_programs(programs: Programs, arrived: Flags, facts: Facts) -> list[Sample]:
    """Return finish minus arrival of each client's programs that have arrived."""
    clients, arrival_s = len(facts.clients), programs.arrival_s

    def of_clients(status: int, latency_s: Floats) -> Iterator[Floats]:
        """Yield, by client, the latencies of the window's programs with a status."""
        chosen = arrived & (programs.status == status)
        return _of_each(programs.client[chosen], latency_s[chosen], clients)

    known = of_clients(FINISHED, programs.finish_s - arrival_s)
    more_than = of_clients(UNFINISHED, facts.horizon_s - arrival_s)
    refused = np.bincount(
        programs.client[arrived & (programs.status == REFUSED)], minlength=clients
    )
    return list(map(Sample, known, more_than, refused.tolist()))


def _first_tokens(
    requests: Requests, programs: Programs, arrived: Flags, facts: Facts
) -> list[Sample]:
    """Return the times to first token (first token minus arrival) of programs that have arrived.

    Requests that an unfinished program had yet to make are censored at 0 s: a starved client makes
    fewer requests, and would otherwise be judged only by those that were served.
    """
    clients = len(facts.clients)
    row, owner = _asked(requests, programs, arrived, clients)
    first_s, arrival_s = requests.first_token_s[row], requests.arrival_s[row]
    answered = ~np.isnan(first_s)
    refused = ~answered & (requests.status[row] == REFUSED)
    waiting = ~answered & ~refused
    cut_short = arrived & (programs.status == UNFINISHED)
    unmade = np.bincount(
        programs.client[cut_short],
        weights=np.maximum(0, programs.demand_requests - programs.requests)[cut_short],
        minlength=clients,
    )
    more_than = (
        np.concatenate([mine_s, np.zeros(int(more))]) if more else mine_s
        for mine_s, more in zip(
            _of_each(owner[waiting], (facts.horizon_s - arrival_s)[waiting], clients),
            unmade.tolist(),
            strict=True,
        )
    )
    known = _of_each(owner[answered], (first_s - arrival_s)[answered], clients)
    count = np.bincount(owner[refused], minlength=clients)
    return list(map(Sample, known, more_than, count.tolist()))


def _asked(
    requests: Requests, programs: Programs, arrived: Flags, clients: int
) -> tuple[Ints, Ints]:
    """Return the requests of programs that have arrived, and their clients.

    If clients have programs with equal ids, the owner is unknown, and a request counts for each of
    these clients.
    """
    order = np.argsort(programs.program_id, kind="stable")
    ids = programs.program_id[order]
    low = np.searchsorted(ids, requests.program_id, "left")
    high = np.searchsorted(ids, requests.program_id, "right")
    row, place = spread(low, high - low)
    program = order[place]
    row, owner = row[arrived[program]], programs.client[program[arrived[program]]]
    if len(ids) > 1 and (ids[1:] == ids[:-1]).any():
        row, owner = np.divmod(np.unique(row * clients + owner), clients)
    return row, owner


def _of_each(client: Ints, values: Floats, clients: int) -> Iterator[Floats]:
    order, bounds = in_order(client, clients)
    mine = values[order]
    return (mine[low:high] for low, high in pairwise(bounds.tolist()))
