"""The clients' summary: a row each, and the latency of the well-behaved, by JSON key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from fairbench.metrics.fairness import Shares
from fairbench.metrics.latency import Ranked, Sample, mean_percentile
from fairbench.metrics.notes import Notes
from fairbench.metrics.reasons import NO_COHORT, NO_VICTIM
from fairbench.metrics.records import (
    Client,
    Facts,
    Programs,
    Requests,
)
from fairbench.metrics.totals import ratio

PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """``programs``, ``requests`` and the cache hit rate are of the whole run, rates of the window.

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


@dataclass(frozen=True, slots=True)
class Victims:
    """Mean over the well-behaved clients of their percentiles, in seconds ([DLPM] §6.1).

    ``victim_n`` is the smallest of their cohorts: that of the least certain percentile.
    """

    victim_p50_s: float
    victim_p95_s: float
    victim_p99_s: float
    victim_n: int


class _Counts(NamedTuple):
    """What the tables say of all clients, by index."""

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
    requests: Requests,
    programs: Programs,
    facts: Facts,
    got: Shares,
    cohorts: list[Ranked],
    notes: Notes,
) -> Iterator[ClientSummary]:
    """The rows of all clients."""
    counts = _counts(requests, programs, len(facts.clients))
    for index, cohort in enumerate(cohorts):
        yield _client_summary(facts.clients[index], index, counts, got, cohort, notes)


def _client_summary(
    client: Client, index: int, counts: _Counts, got: Shares, cohort: Ranked, notes: Notes
) -> ClientSummary:
    length, sample = got.window.length_s, cohort.sample
    key = f"clients.{client.name}."

    def rate(name: str, amount: float) -> float:
        return notes.value(key + name, ratio(amount, length))

    p50, p95, p99 = (
        notes.latency(f"{key}p{p}_s", cohort.percentile(p), _undefined(sample)) for p in PERCENTS
    )
    return ClientSummary(
        client=client.name,
        misbehaving=client.misbehaving,
        programs=counts.programs[index],
        requests=counts.requests[index],
        service_rate_tok_s=rate("service_rate_tok_s", float(got.service[index])),
        actual_service_tok_s=rate("actual_service_tok_s", float(got.actual[index])),
        demand_tok_s=rate("demand_tok_s", float(got.demand[index])),
        entitlement_tok_s=rate("entitlement_tok_s", float(got.entitlement[index])),
        entitlement_ratio=notes.value(
            key + "entitlement_ratio",
            float(got.ratio[index]) if got.contended else float("nan"),
            got.not_judged,
        ),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        latency_n=sample.n,
        latency_unfinished=len(sample.more_than_s),
        latency_refused=sample.refused,
        cache_hit_rate=notes.value(key + "cache_hit_rate", counts.cache_hit_rate[index]),
    )


def victims(cohorts: list[Ranked], facts: Facts, notes: Notes) -> Victims:
    """Latency of the well-behaved clients, undefined as soon as it is for one of them."""
    p50, p95, p99 = (victim_percentile(cohorts, facts, notes, percent) for percent in PERCENTS)
    good = zip(facts.clients, cohorts, strict=True)
    smallest = min((one.n for client, one in good if not client.misbehaving), default=0)
    return Victims(p50, p95, p99, smallest)


def victim_percentile(cohorts: list[Ranked], facts: Facts, notes: Notes, percent: int) -> float:
    """A percentile of them."""
    good = [
        (client.name, cohort)
        for client, cohort in zip(facts.clients, cohorts, strict=True)
        if not client.misbehaving
    ]
    each = [cohort.percentile(percent) for _, cohort in good]
    reasons = (
        f"client {name}: {_undefined(cohort.sample)}"
        for (name, cohort), one in zip(good, each, strict=True)
        if not isfinite(one.value_s)
    )
    why = next(reasons, NO_VICTIM)
    return notes.latency(f"victim_p{percent}_s", mean_percentile(each), why)


def chosen_of_client(
    cohort: Ranked, client: str, percentiles: Iterable[int], notes: Notes
) -> dict[str, float]:
    """The percentiles of a client that a user chose, by key."""
    found = {}
    for one in percentiles:
        key = f"clients.{client}.p{one}_s"
        found[f"p{one}_s"] = notes.latency(key, cohort.percentile(one), _undefined(cohort.sample))
    return found


def _undefined(sample: Sample) -> str:
    """Why a percentile of this sample may have no value."""
    if sample.n == 0:
        return NO_COHORT
    return f"it falls among the {sample.refused} refused of {sample.n}, which count as infinite"
