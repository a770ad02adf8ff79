"""The header of a summary: experiment and hardware, in keys that every run has and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.core import ServiceBound
from fairbench.schedulers.peers.params import ROUTERS
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.programs import program_class


def _trace(workload: WorkloadSpec) -> dict[str, str]:
    if not workload.plays_trace:
        return {}
    from fairbench.workloads.trace_workload import trace_facts

    return trace_facts(workload)


def run_header(
    spec: ExperimentSpec,
    plans: Iterable[ClientPlan],
    *,
    complete: bool,
    pool_tokens: int | None,
    mem_fraction_static: float | None,
    chunked_prefill_size: int | None,
    timing_profile: str | None,
    timing_grade: str | None,
    timing_error_pct: float,
    token_count_method: str | None,
    bound: ServiceBound | None,
    served: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the first keys of a run's summary.

    ``served`` describes the servers of a run on real or emulated servers (``emulated``,
    ``backend``, ``served``); None is the simulator. Sizes are in tokens, None if unknown.
    """
    several = {"routers": spec.routers, "routers_form": spec.settings.get(f"{ROUTERS}.form")}
    return {
        "simulated": served is None,
        **(served or {}),
        "complete": complete,
        "timing_profile": timing_profile,
        "timing_grade": timing_grade,
        "timing_error_pct": timing_error_pct,
        **({"engine": spec.engine} if spec.engine else {}),
        "scheduler": spec.scheduler,
        **({"gateway": spec.gateway, "saturation": spec.saturation} if spec.gateway else {}),
        **({"eviction": spec.eviction} if spec.eviction else {}),
        **(several if spec.routers is not None else {}),
        "router": spec.router,
        "local": spec.local,
        "workload": spec.workload.name,
        **_trace(spec.workload),
        "scenario": spec.scenario,
        "dp": spec.dp,
        **({"prefill": spec.prefill, "decode": spec.decode} if spec.prefill else {}),
        "seed": spec.seed,
        "latency": spec.workload.latency,
        "think_time": spec.workload.latency == "program"
        and any(program_class(plan.kind).pauses(plan.params) for plan in plans),
        "mem_fraction_static": mem_fraction_static,
        "pool_tokens": pool_tokens,
        "chunked_prefill_size": chunked_prefill_size,
        "token_count_method": token_count_method,
        "bound_source": bound.source if bound else None,
    }


def cluster_name(described: Mapping[str, Any]) -> str:
    """Return the replicas of an experiment or a summary: ``dp 4``, or ``prefill 2 decode 2``."""
    if described.get("prefill") is None:
        return f"dp {described['dp']}"
    return f"prefill {described['prefill']} decode {described['decode']}"


def scheduler_name(described: Mapping[str, Any], *, detector: bool = False) -> str:
    """Return the scheduler's name of an experiment or a summary, with a gateway if any.

    ``detector`` adds the saturation detector, which is needed if detectors differ.
    """
    name = str(described["scheduler"])
    if described.get("eviction") is not None:
        name = f"{name} with {described['eviction']} eviction"
    if described.get("gateway") is None:
        return name
    by = f" by {described['saturation']}" if detector else ""
    return f"{name} behind {described['gateway']}{by}"


def cluster_line(summary: Mapping[str, Any]) -> str:
    """Return the experiment and its hardware, beginning with whether it was simulated."""
    called = scheduler_name(summary)
    return f"{basis(summary)}, {cluster_name(summary)}, scheduler {called}, seed {summary['seed']}"


def basis(summary: Mapping[str, Any]) -> str:
    """Return whether the numbers are simulated, emulated or measured, and on what hardware."""
    if summary.get("emulated"):
        return f"emulated on {summary['timing_profile'] or summary.get('served')}"
    if not summary["simulated"]:
        return f"measured on {summary.get('served', 'real servers')}"
    error = f" +-{summary['timing_error_pct']:g}%" if summary.get("timing_error_pct") else ""
    engine = f", engine {summary['engine']}" if "engine" in summary else ""
    return f"simulated on {summary['timing_profile']}{error}{engine}"


def bases(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return each different basis of some summaries."""
    return "; ".join(dict.fromkeys(map(basis, summaries)))


NOBODY_NAMED = (
    "every client counts as well-behaved, because --misbehaving names none; "
    "`fairbench diagnose` finds heavy clients"
)


def is_nobody_named(summary: Mapping[str, Any]) -> bool:
    """Return whether traffic of several clients was replayed and no client is marked as heavy."""
    clients = summary.get("clients", ())
    heavy = any(one["misbehaving"] for one in clients)
    return bool(summary.get("trace")) and len(clients) > 1 and not heavy


def trace_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the recorded traffic that was played, and which parts are synthetic."""
    lines = [f"trace {summary['trace']}"] if summary.get("trace") else []
    return lines + ([f"SYNTHETIC: {summary['synthetic']}"] if summary.get("synthetic") else [])


def details_line(summary: Mapping[str, Any]) -> str:
    """Return the details of a run in one line."""
    before = f"admission {summary['admission']}, " if "admission" in summary else ""
    if "gateway" in summary:
        before += f"gateway {summary['gateway']} (saturation {summary['saturation']}), "
    text = (
        f"{before}router {summary['router']}, local {summary['local']}, "
        f"workload {summary['workload']}, scenario {summary['scenario']}"
    )
    if summary.get("pool_tokens") is None:
        return text
    fraction = summary.get("mem_fraction_static")
    source = f"set by {summary.get('pool_flag', '--max-total-tokens')}"
    if fraction is not None:
        source = f"mem_fraction_static {fraction}"
    return f"{text}, KV pool {summary['pool_tokens']:,} tokens per replica ({source})"
