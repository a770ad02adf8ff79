"""The measures of runs in the frontier study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.config.resolve import read_spec
from fairbench.engine.contract import CONTRACTS
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.metrics.censored_latency import (
    Percentile,
    Sample,
    mean_percentile,
    percentile,
    pooled,
    samples,
)
from fairbench.metrics.fairness import fair_shares
from fairbench.metrics.limit import least_work, most_service
from fairbench.metrics.records import Window
from fairbench.results.comparison import compared_summary
from fairbench.results.run_facts import engine_prices, read_tables, stored_facts
from fairbench.results.store import EXPERIMENT, StoredRun

ENOUGH_FOR_P99 = 300  # fewest latencies from which a P99 is computed
Samples = Mapping[str, Sample]


class Measured(NamedTuple):
    """The measures of a run that was long enough for all programs to finish.

    - ``to_90_s`` and ``to_100_s`` are the times (s) at which 90% and 100% of the programs that
      arrived by the end of the window had finished. If fewer programs finished, the times are lower
      bounds.
    - ``p95_s`` is the mean of the well-behaved clients' P95 latencies, or NaN if refused requests
      leave a P95 undefined.
    - ``served`` is the lowest fraction of its demand that a well-behaved client received in the
      window.
    - ``share`` is the lowest ratio of a client's service to its fair share. Fair shares are the
      max-min fair division of the highest total service that any scheduler reached.
    - The rates ``*_tok_s`` are in tokens/s. All rates except ``computed_tok_s`` count cached input.
    - ``worst_minute`` is the lowest fraction of its fair share that a client got in any minute.
    - ``limit`` is the service as a fraction of the most that any scheduler could give in the
      window.
    """

    to_90_s: float
    to_100_s: float
    p95_s: float
    served: float
    share: float
    service_tok_s: float
    output_tok_s: float
    computed_tok_s: float
    worst_minute: float = 1.0
    limit: float = nan


def measured(summary: Mapping[str, Any], best_tok_s: float) -> Measured:
    """Return a run's ``Measured``; ``best_tok_s`` is the seed's highest service in tokens/s."""
    good = [row for row in summary["clients"] if not row["misbehaving"]]
    compared = compared_summary(summary, best_tok_s, ())
    least = compared["min_entitlement_best_ratio"]
    worst, most = summary.get("min_share_60s"), summary.get("limit_service_tok_s")
    return Measured(
        to_90_s=summary["time_to_90pct_s"] or summary["duration"],
        to_100_s=summary["time_to_100pct_s"] or summary["duration"],
        p95_s=nan if summary["victim_p95_s"] is None else summary["victim_p95_s"],
        served=min(_part(row["service_rate_tok_s"], row["demand_tok_s"]) for row in good),
        share=1.0 if least is None else least,
        service_tok_s=summary["service_rate_tok_s"],
        output_tok_s=summary["output_rate_tok_s"],
        computed_tok_s=summary["actual_service_tok_s"],
        worst_minute=1.0 if worst is None else worst,
        limit=summary["service_rate_tok_s"] / most if most else nan,
    )


def bounds(summary: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the measures that are only lower bounds in a run."""
    never = {f"to_{part}_s" for part in (90, 100) if summary[f"time_to_{part}pct_s"] is None}
    return frozenset(never | ({"p95_s"} if "victim_p95_s" in summary["censored"] else set()))


def _part(got: float | None, due: float | None) -> float:
    return min(1.0, (got or 0.0) / due) if due else 1.0


def victims(run: StoredRun) -> Samples:
    """Return each well-behaved client's latencies in the window, in the workload's metric."""
    tables, stored = read_tables(run), run.summary
    window = Window(stored["window_start_s"], stored["window_end_s"])
    facts = stored_facts(run, window)
    each = samples(tables.requests, tables.programs, facts)
    return {
        client.name: sample
        for client, sample in zip(facts.clients, each, strict=True)
        if not client.misbehaving
    }


FAIRNESS = tuple(number / 10 for number in range(11))
"""The minimum fair shares for which ``limit_curve`` computes the highest possible service."""


def limit_curve(run: StoredRun) -> tuple[float, ...]:
    """Return the highest possible service for each minimum fair share in ``FAIRNESS``.

    The values are fractions of the highest possible service without a fairness requirement. The
    result is empty if the highest possible service is unknown.
    """
    tables, stored = read_tables(run), run.summary
    if not stored.get("limit_service_tok_s"):
        return ()
    window = Window(stored["window_start_s"], stored["window_end_s"])
    spec, profile = read_spec(run.path / EXPERIMENT), load_profile(stored["timing_profile"])
    prices = engine_prices(
        CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, profile), profile
    )
    facts = replace(stored_facts(run, window), prices=prices)
    got = fair_shares(tables.requests, tables.programs, tables.service, facts, window)
    work = least_work(tables.requests, prices)
    most = [most_service(tables, facts, got, work, share) for share in FAIRNESS]
    return tuple(one / most[0] for one in most)


@dataclass(frozen=True)
class Outcome:
    """A scheduler pair in one configuration, with its runs by seed and their latencies.

    ``bounds`` names the measures for which at least one run gives only a lower bound. ``curve`` is
    the result of ``limit_curve``.
    """

    runs: Mapping[int, Measured]
    latencies: Sequence[Samples]
    bounds: frozenset[str]
    curve: tuple[float, ...] = ()

    def mean(self, name: str) -> float:
        """Return a measure's mean over the seeds, or for ``p95_s`` the P95 over all requests."""
        if name == "p95_s":
            return self.p95.value_s
        return fmean(getattr(run, name) for run in self.runs.values())

    @cached_property
    def p95(self) -> Percentile:
        """The mean of well-behaved clients' P95 latencies; each P95 is over all seeds."""
        clients = self.latencies[0]
        return mean_percentile(
            [percentile(pooled([by[name] for by in self.latencies]), 95) for name in clients]
        )

    @cached_property
    def together(self) -> Sample:
        """The latencies of all well-behaved clients in all seeds."""
        return pooled([one for by in self.latencies for one in by.values()])

    @cached_property
    def p99(self) -> Percentile | None:
        """The P99 latency over all seeds, or None if there are too few latencies."""
        return percentile(self.together, 99) if self.together.n >= ENOUGH_FOR_P99 else None
