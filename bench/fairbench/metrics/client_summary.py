"""The summary of clients: a row for each, and the well-behaved clients together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from fairbench.metrics.catalogue import CLIENTS, Notes
from fairbench.metrics.censored_latency import Percentile, Ranked, Sample, mean_percentile
from fairbench.metrics.fairness import Shares
from fairbench.metrics.metric import NO_COHORT, NO_VICTIM
from fairbench.metrics.records import FINISHED, UNFINISHED, Facts, Programs
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import ratio

PERCENTS = (50, 95, 99)
RATES = ("service_rate_tok_s", "actual_service_tok_s", "demand_tok_s", "entitlement_tok_s")


def client_rows(
    tables: Tables, facts: Facts, got: Shares, cohorts: Ranked, lost: str, notes: Notes
) -> Iterator[dict[str, Any]]:
    """Yield the row of each client. Counts and cache hit rate cover the whole run.

    Rates cover the window of ``got``, latencies the programs that arrived in it: ``latency_n``
    (requests if the metric is TTFT), some of which were unfinished at the end or ``lost``.
    """
    requests, clients = tables.requests, len(facts.clients)
    admitted = ~np.isnan(requests.admitted_s)
    cached, extended = (  # sums of whole tokens are exact
        np.bincount(requests.client[admitted], weights=tokens[admitted], minlength=clients).tolist()
        for tokens in (requests.cached_tokens, requests.extend_tokens)
    )
    length = got.window.length_s or float("nan")
    rates = (got.service, got.actual, got.demand, got.entitlement)
    columns: dict[str, Any] = {
        "programs": np.bincount(tables.programs.client, minlength=clients),
        "requests": np.bincount(requests.client, minlength=clients),
        **{key: amount / length for key, amount in zip(RATES, rates, strict=True)},
        "entitlement_ratio": got.ratio if got.contended else np.full(clients, np.nan),
    }
    columns = {key: column.tolist() for key, column in columns.items()}
    percentiles = list(zip(*map(cohorts.percentiles, PERCENTS), strict=True))
    for index, client in enumerate(facts.clients):
        latency, sample = percentiles[index], cohorts.samples[index]
        row = {
            "client": client.name,
            "misbehaving": client.misbehaving,
            **{key: column[index] for key, column in columns.items()},
            **{f"p{rank}_s": one.value_s for rank, one in zip(PERCENTS, latency, strict=True)},
            "latency_n": sample.n,
            "latency_unfinished": len(sample.more_than_s),
            "latency_refused": sample.refused,
            "cache_hit_rate": ratio(cached[index], cached[index] + extended[index]),
        }
        _note(row, latency, undefined(sample, lost), got, notes)
        yield row


def _note(
    row: Mapping[str, Any], latency: Sequence[Percentile], why: str, got: Shares, notes: Notes
) -> None:
    """Note why values of a row are undefined, and which values are bounds."""
    known = (isfinite(row[key]) for key in (*RATES, "entitlement_ratio", "cache_hit_rate"))
    if all(known) and all(isfinite(one.value_s) and not one.censored for one in latency):
        return
    key = f"{CLIENTS}{row['client']}."
    for percent, one in zip(PERCENTS, latency, strict=True):
        notes.latency(f"{key}p{percent}_s", one, why)
    notes.values({name: row[name] for name in RATES}, key)
    notes.value(key + "entitlement_ratio", row["entitlement_ratio"], got.not_judged)
    notes.value(key + "cache_hit_rate", row["cache_hit_rate"])


def chosen_of_clients(
    cohorts: Ranked, facts: Facts, lost: str, notes: Notes
) -> Iterator[dict[str, float]]:
    """Yield, by client, the user's percentiles by key."""
    chosen = [cohorts.percentiles(one) for one in facts.percentiles]
    for index, client in enumerate(facts.clients):
        why = undefined(cohorts.samples[index], lost)
        yield {
            f"p{percent}_s": notes.latency(f"{CLIENTS}{client.name}.p{percent}_s", each[index], why)
            for percent, each in zip(facts.percentiles, chosen, strict=True)
        }


def undefined(sample: Sample, lost: str) -> str:
    """Return the reason why a percentile of this sample may be undefined.

    ``lost`` is the word for requests without an answer, such as refused.
    """
    if sample.n == 0:
        return NO_COHORT
    return f"it falls among the {sample.refused} {lost} of {sample.n}, which count as infinite"


class WellBehaved:
    """The well-behaved clients that were not absent, whose latency counts.

    A client was absent if no work of it was in progress in the window, so that nothing delayed it.
    A client whose program arrived earlier and continues is kept, with an undefined latency, because
    a waiting client may send nothing more. If all were absent, all are kept.
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

    def summary(self, notes: Notes) -> dict[str, float]:
        """Return the means of their percentiles, in seconds ([DLPM] §6.1).

        ``victim_n`` is the smallest of their cohorts: the number behind the least certain
        percentile.
        """
        means = {f"victim_p{rank}_s": self.percentile(rank, notes) for rank in PERCENTS}
        cohorts = (self._cohorts.samples[one].n for one in self._counted)
        return means | {"victim_n": min(cohorts, default=0)}

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
            notes.remark(key, f"without {absent} that had no work in progress")
        mean = mean_percentile([every[one] for one in self._counted])
        return notes.latency(key, mean, next(reasons, NO_VICTIM))
