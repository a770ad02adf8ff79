"""Latency percentiles that are correct even if some programs never finished.

The latency of a request that is unfinished at the end is right-censored: only a lower bound is
known. The latency of a refused request is infinite. If unfinished and refused requests were left
out, the scheduler that starved them would look better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import in_order, spread
from fairbench.metrics.reasons import NAN, NO_COHORT, NO_VICTIM, Noted
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

PERCENTS = (50, 95, 99)


class Percentile(NamedTuple):
    """A percentile in seconds; ``censored`` marks a lower bound, which prints as "> x s".

    ``value_s`` is NaN for an empty sample, and infinite if the percentile falls among refused
    requests.
    """

    value_s: float
    censored: bool


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sample of latencies (s): known values, lower bounds, and the number of refused requests."""

    known_s: Floats
    more_than_s: Floats
    refused: int

    @property
    def n(self) -> int:
        """The total number of measured latencies, bounds on latencies, and refused requests."""
        return len(self.known_s) + len(self.more_than_s) + self.refused


def pooled(samples: Sequence[Sample]) -> Sample:
    """Return one sample that contains the latencies of all given samples."""
    return Sample(
        np.concatenate([one.known_s for one in samples]),
        np.concatenate([one.more_than_s for one in samples]),
        sum(one.refused for one in samples),
    )


class Ranked:
    """The latencies of all clients, sorted once so that each percentile costs only O(clients)."""

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
        # A lower bound is sorted after an equal known latency, because the true latency is longer.
        order = np.lexsort((unknown, values, owner))
        self._least, self._unknown = values[order], unknown[order]
        self._most = self._least
        if unknown.any():
            most = np.where(unknown, np.inf, values)
            self._most = most[np.lexsort((most, owner))]

    def percentiles(self, percent: float) -> list[Percentile]:
        """Return the percentile ``percent`` of each sample, in the order of the samples."""
        value_s, censored = np.full(len(self._n), np.nan), np.zeros(len(self._n), dtype=np.bool_)
        some = np.flatnonzero(self._n)
        rank = (self._n[some] - 1) * percent / 100
        low, high = (self._begin[some] + end(rank).astype(np.int64) for end in (np.floor, np.ceil))
        part = rank - np.floor(rank)
        least = _interpolate(self._least, low, high, part)
        open_ended = least != _interpolate(self._most, low, high, part)
        unsure = self._unknown[low] | self._unknown[high]
        # A percentile known to be at least x prints as "> x". If the true percentile may be exactly
        # x, the code reduces x to the next smaller number, so that "> x" is true.
        below = np.where(open_ended & ~unsure, np.nextafter(least, -np.inf), least)
        value_s[some], censored[some] = below, open_ended
        return list(map(Percentile, value_s.tolist(), censored.tolist()))


def percentile(sample: Sample, percent: float) -> Percentile:
    """Return the percentile by linear interpolation between order statistics, as numpy does.

    The percentile is exact if the censored latencies cannot change it. If censored latencies can
    change the percentile, the result is a lower bound on the percentile.
    """
    return Ranked([sample]).percentiles(percent)[0]


def mean_percentile(percentiles: list[Percentile]) -> Percentile:
    """Return the mean of percentiles, which is a lower bound if any percentile is censored."""
    if not percentiles:
        return Percentile(NAN, False)
    mean = sum(p.value_s for p in percentiles) / len(percentiles)
    return Percentile(mean, any(p.censored for p in percentiles))


def _interpolate(ascending: Floats, low: Ints, high: Ints, part: Floats) -> Floats:
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
    return _program_latencies(programs, arrived, facts)


def _program_latencies(programs: Programs, arrived: Flags, facts: Facts) -> list[Sample]:
    clients, arrival_s = len(facts.clients), programs.arrival_s

    def by_client(status: int, latency_s: Floats) -> Iterator[Floats]:
        chosen = arrived & (programs.status == status)
        return _split_by_client(programs.client[chosen], latency_s[chosen], clients)

    known = by_client(FINISHED, programs.finish_s - arrival_s)
    more_than = by_client(UNFINISHED, facts.horizon_s - arrival_s)
    refused = np.bincount(
        programs.client[arrived & (programs.status == REFUSED)], minlength=clients
    )
    return list(map(Sample, known, more_than, refused.tolist()))


def _first_tokens(
    requests: Requests, programs: Programs, arrived: Flags, facts: Facts
) -> list[Sample]:
    """Return each client's TTFTs in seconds, for requests of the programs in the mask ``arrived``.

    A request that an unfinished program has not sent yet has the lower bound 0 s. Without unsent
    requests, a starved client would be judged only by the few requests that were served.
    """
    clients = len(facts.clients)
    row, owner = _arrived_requests(requests, programs, arrived, clients)
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
            _split_by_client(owner[waiting], (facts.horizon_s - arrival_s)[waiting], clients),
            unmade.tolist(),
            strict=True,
        )
    )
    known = _split_by_client(owner[answered], (first_s - arrival_s)[answered], clients)
    count = np.bincount(owner[refused], minlength=clients)
    return list(map(Sample, known, more_than, count.tolist()))


def _arrived_requests(
    requests: Requests, programs: Programs, arrived: Flags, clients: int
) -> tuple[Ints, Ints]:
    """Return the row and client of each request whose program is True in ``arrived``.

    If programs of several clients have equal ids, each request counts for each of these clients.
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


def _split_by_client(client: Ints, values: Floats, clients: int) -> Iterator[Floats]:
    order, bounds = in_order(client, clients)
    mine = values[order]
    return (mine[low:high] for low, high in pairwise(bounds.tolist()))


def why_undefined(sample: Sample, lost: str) -> str:
    """Return why a percentile of a sample is not finite.

    ``lost`` is the word for unanswered requests in the returned text, such as "refused".
    """
    if sample.n == 0:
        return NO_COHORT
    return f"it falls among the {sample.refused} {lost} of {sample.n}, which count as infinite"


def noted(percentile: Percentile, reason: str = "", remark: str = "") -> Noted:
    """Return a percentile as a metric's value; ``reason`` explains an infinite or NaN value."""
    bounded = percentile.censored and isfinite(percentile.value_s)
    return Noted(percentile.value_s, reason, ">" if bounded else "", remark)


def client_percentiles(cohorts: Ranked, percent: int, lost: str) -> list[Noted]:
    """Return a latency percentile of each client, with a reason for each undefined percentile."""
    return [
        noted(one, "" if isfinite(one.value_s) else why_undefined(sample, lost))
        for one, sample in zip(cohorts.percentiles(percent), cohorts.samples, strict=True)
    ]


def mean_of_clients(
    cohorts: Ranked, counted: Sequence[int], percent: int, facts: Facts, lost: str, remark: str = ""
) -> Noted:
    """Return the mean of a latency percentile over the clients with the indices ``counted``.

    If the mean is not finite, the result's reason names a client with an undefined percentile.
    """
    every, reason = cohorts.percentiles(percent), NO_VICTIM
    undefined = next((one for one in counted if not isfinite(every[one].value_s)), None)
    if undefined is not None:
        why = why_undefined(cohorts.samples[undefined], lost)
        reason = f"client {facts.clients[undefined].name}: {why}"
    return noted(mean_percentile([every[one] for one in counted]), reason, remark)


class WellBehaved:
    """The latencies of the well-behaved clients that had work in progress in the window.

    A well-behaved client without work in the window is left out, because nothing could delay it. A
    program that arrived before the window and was unfinished at its start also counts as work,
    because a client may send nothing new while it waits. If no well-behaved client had work, all of
    them are included.
    """

    def __init__(self, programs: Programs, cohorts: Ranked, facts: Facts, lost: str) -> None:
        window, finished = facts.window, programs.status == FINISHED
        under_way = (programs.arrival_s < window.end_s) & (
            finished & (programs.finish_s > window.start_s) | (programs.status == UNFINISHED)
        )
        busy = np.bincount(programs.client[under_way], minlength=len(facts.clients)) > 0
        good = [index for index, one in enumerate(facts.clients) if not one.misbehaving]
        here = [index for index in good if busy[index] or cohorts.samples[index].n]
        self._cohorts, self._facts, self._lost = cohorts, facts, lost
        self._counted = here or good
        self._absent = len(good) - len(self._counted)

    @property
    def least_n(self) -> int:
        """The smallest number of latencies that any of the clients has."""
        return min((self._cohorts.samples[one].n for one in self._counted), default=0)

    def percentile(self, percent: int) -> Noted:
        """Return a latency percentile (s), averaged over well-behaved clients ([DLPM] §6.1)."""
        remark = ""
        if self._absent:
            absent = "one client" if self._absent == 1 else f"{self._absent} clients"
            remark = f"without {absent} that had no work in progress"
        cohorts, facts, lost = self._cohorts, self._facts, self._lost
        return mean_of_clients(cohorts, self._counted, percent, facts, lost, remark)
