"""Measures of a run, and of a configuration over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.metrics.censored_latency import (
    Percentile,
    Sample,
    mean_percentile,
    percentile,
    pooled,
    samples,
)
from fairbench.metrics.records import Window
from fairbench.results.comparison import compared_summary
from fairbench.results.run_facts import stored_facts
from fairbench.results.run_tables import read_tables
from fairbench.results.store import StoredRun

ENOUGH_FOR_P99 = 300  # number of latencies
Samples = Mapping[str, Sample]


class Measured(NamedTuple):
    """The measures of one drained run, with all programs under every scheduler.

    - ``to_90_s`` and ``to_100_s`` are the times by which 90% and 100% of the programs of
    warm-up and window had finished. If that never happened, the value is the run's end, a lower
    bound.
    - ``p95_s`` is the mean P95 of the well-behaved clients, NaN if it falls among refused requests.
    - ``served`` is the lowest fraction, over well-behaved clients, of the service due in the
    window that was received.
    - ``share`` is the lowest fraction of a client's max-min share of the best total that any
    configuration delivered.
    - Rates are in tokens/s of the client view; ``computed_tok_s`` excludes cached tokens.
    """

    to_90_s: float
    to_100_s: float
    p95_s: float
    served: float
    share: float
    service_tok_s: float
    output_tok_s: float
    computed_tok_s: float


def measured(summary: Mapping[str, Any], best_tok_s: float) -> Measured:
    """Return a run's measures, given the highest service of any run of its seed."""
    good = [row for row in summary["clients"] if not row["misbehaving"]]
    compared = compared_summary(summary, best_tok_s, ())
    shares = compared["min_entitlement_best_ratio"]
    return Measured(
        to_90_s=summary["time_to_90pct_s"] or summary["duration"],
        to_100_s=summary["time_to_100pct_s"] or summary["duration"],
        p95_s=nan if summary["victim_p95_s"] is None else summary["victim_p95_s"],
        served=min(_part(row["service_rate_tok_s"], row["demand_tok_s"]) for row in good),
        share=1.0 if shares is None else shares,
        service_tok_s=summary["service_rate_tok_s"],
        output_tok_s=summary["output_rate_tok_s"],
        computed_tok_s=summary["actual_service_tok_s"],
    )


def bounds(summary: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of ``Measured`` that are only lower bounds in a run."""
    never = {f"to_{part}_s" for part in (90, 100) if summary[f"time_to_{part}pct_s"] is None}
    return frozenset(never | ({"p95_s"} if "victim_p95_s" in summary["censored"] else set()))


def _part(got: float | None, due: float | None) -> float:
    return min(1.0, (got or 0.0) / due) if due else 1.0


def victims(run: StoredRun) -> Samples:
    """Return each well-behaved client's latencies in the window, in its workload's metric."""
    tables, stored = read_tables(run), run.summary
    window = Window(stored["window_start_s"], stored["window_end_s"])
    facts = stored_facts(run, window)
    each = samples(tables.requests, tables.programs, facts)
    return {
        client.name: sample
        for client, sample in zip(facts.clients, each, strict=True)
        if not client.misbehaving
    }


@dataclass(frozen=True)
class Outcome:
    """A configuration in a cell: its runs by seed, and the latencies of each.

    ``bounds`` are the fields that are only lower bounds in one of the runs.
    """

    runs: Mapping[int, Measured]
    latencies: Sequence[Samples]
    bounds: frozenset[str]

    def mean(self, name: str) -> float:
        """Return a field's mean over the seeds; for ``p95_s``, the percentile over all seeds."""
        if name == "p95_s":
            return self.p95.value_s
        return fmean(getattr(run, name) for run in self.runs.values())

    @cached_property
    def p95(self) -> Percentile:
        """Return the mean of the well-behaved clients' P95, each over all seeds."""
        clients = self.latencies[0]
        return mean_percentile(
            [percentile(pooled([by[name] for by in self.latencies]), 95) for name in clients]
        )

    @cached_property
    def together(self) -> Sample:
        """The latencies of all well-behaved clients and seeds."""
        return pooled([one for by in self.latencies for one in by.values()])

    @cached_property
    def p99(self) -> Percentile | None:
        """Return the P99 over the latencies of all seeds; None with too few latencies."""
        return percentile(self.together, 99) if self.together.n >= ENOUGH_FOR_P99 else None
