"""The summary of clients: a row for each, and the well-behaved clients together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from fairbench.metrics.catalogue import Notes
from fairbench.metrics.censored_latency import Percentile, Ranked, Sample, mean_percentile
from fairbench.metrics.fairness import Shares
from fairbench.metrics.metric import NO_COHORT, NO_VICTIM
from fairbench.metrics.records import FINISHED, UNFINISHED, Facts, Programs, Requests
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import ratio

PERCENTS = (50, 95, 99)
RATES = ("service_rate_tok_s", "actual_service_tok_s", "demand_tok_s", "entitlement_tok_s")


class ClientSummary(NamedTuple):
    """A client's row. Counts and cache hit rate are of the whole run, rates of the window.

    ``demand_tok_s`` (what was due) and ``entitlement_tok_s`` are client-view service rates; the
    ratio to the latter is undefined where no client was short of service. Latencies are of the
    cohort, programs that arrived in the window: ``latency_n`` of them (requests where the metric
    is TTFT), of which so many were unfinished at the end or refused. A P99 needs about 300.
    """

    client: str
    misbehaving: bool
    programs: int
    requests: int
    service_rate_tok_s: float
    actual_service_tok_s: float
    demand_tok_s: float
    entitlement_tok_s: float
    entitlement_ratio: float
    p50_s: float
    p95_s: float
    p99_s: float
    latency_n: int
    latency_unfinished: int
    latency_refused: int
    cache_hit_rate: float


class _Counts(NamedTuple):
    """The counts from the tables for all clients, by index."""

    programs: list[int]
    requests: list[int]
    cache_hit_rate: list[float]


def _counts(requests: Requests, programs: Programs, clients: int) -> _Counts:
    admitted = ~np.isnan(requests.admitted_s)
    owner = requests.client[admitted]
    cached, extended = (  # sums of whole tokens are exact
        np.bincount(owner, weights=tokens[admitted], minlength=clients).tolist()
        for tokens in (requests.cached_tokens, requests.extend_tokens)
    )
    return _Counts(
        np.bincount(programs.client, minlength=clients).tolist(),
        np.bincount(requests.client, minlength=clients).tolist(),
        [ratio(one, one + more) for one, more in zip(cached, extended, strict=True)],
    )


def client_summaries(
    tables: Tables,
    facts: Facts,
    got: Shares,
    cohorts: Ranked,
    lost: str,
    notes: Notes,
) -> Iterator[ClientSummary]:
    """Yield the rows of all clients.

    Args:
        tables: Tables of the run.
        facts: Facts about the run that the tables do not contain.
        got: Service and fair share of each client in the window.
        cohorts: Ranked latencies of each client.
        lost: Word for requests without an answer, such as refused.
        notes: Notes of the summary under construction, to which new ones are added.
    """
    counts = _counts(tables.requests, tables.programs, len(facts.clients))
    percentiles = list(zip(*map(cohorts.percentiles, PERCENTS), strict=True))
    length = got.window.length_s or float("nan")
    rates = [got.service, got.actual, got.demand, got.entitlement]
    shares = [(amount / length).tolist() for amount in rates]
    shares.append((got.ratio if got.contended else np.full(len(got.ratio), np.nan)).tolist())
    for index, client in enumerate(facts.clients):
        service, actual, demand, entitlement, share = (column[index] for column in shares)
        latency, sample = percentiles[index], cohorts.samples[index]
        p50, p95, p99 = latency
        row = ClientSummary(
            client=client.name,
            misbehaving=client.misbehaving,
            programs=counts.programs[index],
            requests=counts.requests[index],
            service_rate_tok_s=service,
            actual_service_tok_s=actual,
            demand_tok_s=demand,
            entitlement_tok_s=entitlement,
            entitlement_ratio=share,
            p50_s=p50.value_s,
            p95_s=p95.value_s,
            p99_s=p99.value_s,
            latency_n=sample.n,
            latency_unfinished=len(sample.more_than_s),
            latency_refused=sample.refused,
            cache_hit_rate=counts.cache_hit_rate[index],
        )
        _note(row, latency, undefined(sample, lost), got, notes)
        yield row


def _note(
    row: ClientSummary,
    latency: Sequence[Percentile],
    why: str,
    got: Shares,
    notes: Notes,
) -> None:
    """Note why values of a row are undefined, and which values are bounds."""
    values = (*row[4:12], row.cache_hit_rate)
    if all(map(isfinite, values)) and not any(one.censored for one in latency):
        return
    key = f"clients.{row.client}."
    for percent, one in zip(PERCENTS, latency, strict=True):
        notes.latency(f"{key}p{percent}_s", one, why)
    for name in RATES:
        notes.value(key + name, getattr(row, name))
    notes.value(key + "entitlement_ratio", row.entitlement_ratio, got.not_judged)
    notes.value(key + "cache_hit_rate", row.cache_hit_rate)


def chosen_of_clients(
    cohorts: Ranked, facts: Facts, lost: str, notes: Notes
) -> Iterator[dict[str, float]]:
    """Yield, by client, the percentiles that the user chose, by key.

    Args:
        cohorts: Ranked latencies of each client.
        facts: Facts about the run that the tables do not contain.
        lost: Word for requests without an answer, such as refused.
        notes: Notes of the summary under construction, to which new ones are added.
    """
    chosen = [cohorts.percentiles(one) for one in facts.percentiles]
    for index, client in enumerate(facts.clients):
        why = undefined(cohorts.samples[index], lost)
        yield {
            f"p{percent}_s": notes.latency(f"clients.{client.name}.p{percent}_s", each[index], why)
            for percent, each in zip(facts.percentiles, chosen, strict=True)
        }


def undefined(sample: Sample, lost: str) -> str:
    """Return the reason why a percentile of this sample may be undefined.

    ``lost`` is the word for requests without an answer, such as refused.
    """
    if sample.n == 0:
        return NO_COHORT
    return f"it falls among the {sample.refused} {lost} of {sample.n}, which count as infinite"


@dataclass(frozen=True, slots=True)
class Victims:
    """The mean over the well-behaved clients of their percentiles, in seconds.

    See [DLPM] §6.1.

    Those that were absent are left out. ``victim_n`` is the smallest of their cohorts: that of the
    least certain percentile.
    """

    victim_p50_s: float
    victim_p95_s: float
    victim_p99_s: float
    victim_n: int


class WellBehaved:
    """The well-behaved clients that were not absent, whose latency counts.

    A client was absent if none of its work was in progress in the window, so that nothing kept
    it waiting. A client whose program came earlier and continues is kept, with an undefined
    latency, since a waiting client may send nothing more. If all were absent, all are kept.
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

    def summary(self, notes: Notes) -> Victims:
        """Return their latency, which is undefined if it is undefined for one client."""
        p50, p95, p99 = (self.percentile(percent, notes) for percent in PERCENTS)
        samples = self._cohorts.samples
        return Victims(p50, p95, p99, min((samples[one].n for one in self._counted), default=0))

    def percentile(self, percent: int, notes: Notes) -> float:
        """Return a percentile over these clients."""
        every = self._cohorts.percentiles(percent)
        samples = self._cohorts.samples
        reasons = (
            f"client {self._facts.clients[one].name}: {undefined(samples[one], self._lost)}"
            for one in self._counted
            if not isfinite(every[one].value_s)
        )
        key = f"victim_p{percent}_s"
        if self._absent:
            absent = "one client" if self._absent == 1 else f"{self._absent} clients"
            notes.remark(key, f"without {absent} of whom nothing was under way")
        mean = mean_percentile([every[one] for one in self._counted])
        return notes.latency(key, mean, next(reasons, NO_VICTIM))
