"""The summary of a simulation: its metrics, and what was run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairbench.core import PS_PER_S
from fairbench.metrics.records import Facts
from fairbench.metrics.tables import Tables
from fairbench.results.facts import cluster_bound
from fairbench.results.header import run_header
from fairbench.results.run_facts import fit_limits, lone_step, metrics_of, run_facts

if TYPE_CHECKING:
    from fairbench.sim.run import Simulation
    from fairbench.workloads.datasets import Source


def facts_of(simulation: Simulation) -> Facts:
    """Return the facts that the metrics need besides the tables."""
    spec, cluster = simulation.spec, simulation.cluster
    bound, reason = cluster_bound(
        *(simulation.router, cluster.workers[0].scheduler, spec.dp),
        spec.gateway or ("admission control" if simulation.admission.is_on else None),
        disaggregated=spec.prefill is not None,
    )
    return run_facts(
        spec,
        simulation.plans,
        last_arrival_s=cluster.last_arrival_ps / PS_PER_S,
        end_s=cluster.now_s,
        workers=spec.dp,
        pool_tokens=simulation.engine.pool_tokens,
        bound=bound,
        bound_unavailable=reason,
        fit=fit_limits(spec.gpu),
        lone=lone_step(spec.gpu),
    )


def summary_of(
    simulation: Simulation, tables: Tables, facts: Facts, source: Source | None, complete: bool
) -> dict[str, Any]:
    """Return the summary as JSON types: metrics, and a description of the run."""
    header = run_header(
        simulation.spec,
        simulation.plans,
        complete=complete,
        pool_tokens=simulation.engine.pool_tokens,
        mem_fraction_static=simulation.engine.mem_fraction_static,
        chunked_prefill_size=simulation.engine.chunk_tokens,
        timing_profile=simulation.spec.gpu,
        timing_grade=simulation.profile.grade,
        timing_error_pct=simulation.timing_error_pct,
        token_count_method=source.token_count_method if source else None,
        bound=facts.bound,
    )
    if simulation.admission.is_on:
        header["admission"] = simulation.admission.policy
    return header | metrics_of(tables, facts)
