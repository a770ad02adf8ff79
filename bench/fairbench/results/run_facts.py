"""Facts of a run that metrics need: window, bound by a theorem, costs, and limits of a fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf, nextafter

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, NoBound, ServiceBound, ServiceWeights
from fairbench.hardware.catalogue import is_known, load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.metrics.records import PLAIN, Client, Facts, FitLimits, LoneStep, Padding, Window
from fairbench.metrics.shown_percentiles import chosen_percentiles, parse_percentiles
from fairbench.results.store import StoredRun
from fairbench.schedulers.base import LocalScheduler, Router
from fairbench.targets import written_targets
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan

SESSION = "session"  # a kind of programs; other kinds state whether they have pauses


def run_facts(
    spec: ExperimentSpec,
    plans: Iterable[ClientPlan],
    *,
    last_arrival_s: float,
    end_s: float,
    workers: int,
    pool_tokens: int,
    bound: ServiceBound | None,
    bound_unavailable: str,
    fit: FitLimits | None = None,
    lone: LoneStep | None = None,
) -> Facts:
    """Return the facts of a run that ended at ``end_s``. ``pool_tokens`` is 0 if unknown."""
    return Facts(
        clients=tuple(
            Client(
                *(plan.client, plan.misbehaving, plan.weight, plan.targets, plan.service_class),
                owner=plan.owner,
                padding=padding_of(plan),
            )
            for plan in plans
        ),
        window=run_window(spec, last_arrival_s, end_s),
        horizon_s=end_s,
        workers=workers,
        pool_tokens=pool_tokens,
        latency=spec.workload.latency,
        bound=bound,
        bound_unavailable=bound_unavailable,
        fit=fit,
        lone=lone,
        costs=costs_of(spec.gpu),
        percentiles=parse_percentiles(spec.percentiles or ""),
        tenant_weights=spec.tenant_weights,
        sessions=has_sessions(spec.workload),
        prefill_workers=spec.prefill,
    )


def stored_facts(
    run: StoredRun,
    window: Window,
    bound: ServiceBound | None = None,
    bound_unavailable: str = "",
    percentiles: tuple[int, ...] = (),
) -> Facts:
    """Return a stored run's facts for any window; ``percentiles`` override its own."""
    summary = run.summary
    return Facts(
        clients=tuple(
            Client(
                *(row["client"], row["misbehaving"], row.get("weight", 1.0)),
                written_targets(row.get("goodput_targets", "")),
                row.get("goodput_class", ""),
                row.get("owner", ""),
                Padding(row.get("padding_tokens", 0), row.get("output_multiple", 1)),
            )
            for row in summary["clients"]
        ),
        window=window,
        horizon_s=summary["duration"],
        workers=summary["dp"],
        pool_tokens=summary["pool_tokens"] or 0,
        latency=summary["latency"],
        bound=bound,
        bound_unavailable=bound_unavailable,
        fit=fit_limits(summary["timing_profile"]),
        lone=lone_step(summary["timing_profile"]) if summary["simulated"] else None,
        costs=costs_of(summary["timing_profile"]),
        percentiles=percentiles or chosen_percentiles(summary),
        tenant_weights={row["tenant"]: row["weight"] for row in summary.get("tenants", ())},
        hit_alone={
            row["client"]: row["cache_hit_rate_alone"]
            for row in summary["clients"]
            if row.get("cache_hit_rate_alone") is not None
        },
        sessions="victim_session_p50_s" in summary,
        prefill_workers=summary.get("prefill"),
        failed=summary["failed"],
    )


def has_sessions(workload: WorkloadSpec) -> bool:
    """Return whether the workload's programs are recorded sessions."""
    return workload.program == SESSION or bool(workload.params.get("pauses"))


def padding_of(plan: ClientPlan) -> Padding:
    """Return the part of a client's requests that is padding."""
    if plan.disguise is None:
        return PLAIN
    return Padding(plan.disguise.padding_tokens, plan.disguise.output_multiple)


def fit_limits(profile_id: str | None) -> FitLimits | None:
    """Return the range to which a timing profile was fitted; None if unknown."""
    if profile_id is None or not is_known(profile_id):
        return None
    profile = load_profile(profile_id)
    domain, pool = profile.fit_domain, profile.pool
    if domain is None:
        return None
    return FitLimits(
        domain.decode_batch, domain.context_tokens or pool.tokens(pool.mem_fraction_static)
    )


def lone_step(profile_id: str) -> LoneStep | None:
    """Return the decode step of a lone request in a profile; None if unknown."""
    if not is_known(profile_id):
        return None
    profile = load_profile(profile_id)
    return LoneStep(profile.decode_ps(1, 0) / PS_PER_S, profile.context_ps / PS_PER_S)


def costs_of(profile_id: str | None) -> ProfileCosts | None:
    """Return the iteration costs of a timing profile; None if unknown."""
    known = profile_id is not None and is_known(profile_id)
    return ProfileCosts(load_profile(profile_id)) if known and profile_id else None


def run_window(spec: ExperimentSpec, last_arrival_s: float, now_s: float) -> Window:
    """Return [end of warm-up, end of arrivals), or the whole run.

    The whole run is the window if the spec says so, or if hardly any window would remain. Fixed
    numbers of programs may end within the warm-up, all programs of a trace may arrive at once, and
    a run may be interrupted there. The end of the run itself (``now_s``) is included, because its
    last tokens come exactly then.
    """
    whole = Window(0.0, nextafter(now_s, inf))
    end_s = spec.duration_s
    if end_s is None:
        end_s = last_arrival_s
        if end_s <= 2 * spec.warmup_s:
            return whole
    if spec.window == "whole" or now_s <= spec.warmup_s or last_arrival_s < spec.warmup_s:
        return whole
    return Window(spec.warmup_s, end_s)


DISAGGREGATED = (
    "disaggregated: a theorem bounds the prefill side alone, not the answers that decode workers "
    "generate"
)


def cluster_bound(
    router: Router,
    local: LocalScheduler,
    workers: int,
    gateway: str | None = None,
    *,
    disaggregated: bool = False,
) -> tuple[ServiceBound | None, str]:
    """Return the theorem for gateway, router and local scheduler; None with the reason."""
    bound = NoBound(DISAGGREGATED) if disaggregated else local.service_bound()
    if isinstance(bound, NoBound):
        return None, bound.reason
    counted, charged = ServiceWeights(), bound.weights
    if charged != counted:
        return None, (
            f"{local.name} charges {charged.extend} a token of extend and {charged.output} a token "
            f"of output, while service counts {counted.extend} and {counted.output}"
        )
    if router.holds or gateway:
        holder = gateway or router.name
        return None, f"{holder} queues requests, where {local.name} does not see them"
    if workers == 1:
        return bound, ""
    theorem = router.cluster_theorems.get(bound.source)
    if theorem is None:
        return None, f"no theorem covers {local.name} behind {router.name} on several workers"
    return replace(bound, source=theorem, workers=workers), ""
