"""The metrics that an experiment will have, known before it runs.

A metric that an experiment cannot have is refused before anything is simulated, not at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fairbench.config import ExperimentSpec
from fairbench.errors import UsageError, choose_from
from fairbench.metrics.catalogue import (
    CATALOGUE,
    CLIENTS,
    key_of,
    known_key,
    metric_of,
    name_of,
    short_of,
)
from fairbench.metrics.entries import some_runs
from fairbench.metrics.metric import LATENCIES, NO_VICTIM, Better, Of
from fairbench.metrics.shown_percentiles import parse_percentiles
from fairbench.results.run_facts import has_sessions
from fairbench.targets import NO_TARGETS
from fairbench.tenants import named_below, tenants_of
from fairbench.workloads.plan import ClientPlan

OF_SESSIONS, OF_MEMORY, OF_SIDES = (
    frozenset(metric.key for metric in entries)
    for entries in (some_runs.SESSIONS, some_runs.MEMORY, some_runs.SIDES)
)
ITL = frozenset(f"{statistic}_itl_ms" for statistic in ("median", "std", "p50", "p99"))
VICTIM = "victim_"


def check_metrics_of(keys: Iterable[str], specs: Sequence[ExperimentSpec], option: str) -> None:
    """Raise UsageError for a metric that is unknown, has no better direction, or has no value.

    Args:
        keys: Metrics by their keys or other names.
        specs: Experiments that will run; a metric is refused if none of them can have it.
        option: The flag that names the metrics, for the message.
    """
    for name in keys:
        key = known_key(name)
        entry = metric_of(key)
        if entry is None or entry.better is Better.NEITHER:
            raise UsageError(
                f"{option} {name}: has no worse direction; choose a metric that has one"
            )
        reasons = [why_missing(key, spec) for spec in specs]
        if reasons and all(reasons):
            raise UsageError(f"{option} {name}: {reasons[0]}")


def why_missing(key: str, spec: ExperimentSpec) -> str:
    """Return why the summary of an experiment will have no value for a metric; "" if it may.

    Whether a metric that depends on the course of a run has a value is not known before.
    """
    name, key = name_of(key_of(key)), key_of(key)
    plans = spec.client_plans()
    if key.startswith(CLIENTS):
        client = key.removeprefix(CLIENTS).rpartition(".")[0]
        if client not in (names := [plan.client for plan in plans]):
            return f"unknown client {client!r}: {choose_from(client, sorted(names))}"
    entry, alone = metric_of(key), f"{CLIENTS}{plans[0].client}.{name}"
    if entry and entry.of is (Of.RUN if key.startswith(CLIENTS) else Of.CLIENT):
        whole = f"is a metric of the whole run; write {short_of(name)}"
        return whole if entry.of is Of.RUN else f"is a metric of one client; write {alone}"
    if name.startswith(VICTIM) and all(plan.misbehaving for plan in plans):
        return f"{NO_VICTIM} in scenario {spec.scenario}"
    return next(_reasons(name, spec, plans), "")


def _reasons(name: str, spec: ExperimentSpec, plans: Sequence[ClientPlan]) -> Iterator[str]:
    """Yield why an experiment cannot have a metric, and what to do."""
    if name in OF_SESSIONS and not has_sessions(spec.workload):
        yield (
            f"needs a workload of recorded sessions, and {spec.workload.name} has none"
            f"{_instead_of(name, spec)}"
        )
    if name not in CATALOGUE and (rank := _rank(name)) not in _chosen(spec):
        yield f"needs this percentile to be chosen; give --percentiles {rank}"
    if "goodput" in name and all(plan.targets == NO_TARGETS for plan in plans):
        yield "goodput needs latency targets; give them with --goodput"
    if name.startswith("tree_") and not _has_tenants(plans):
        yield "the workload has no tenants; name its clients TENANT/CLIENT"
    if name in OF_MEMORY and not (spec.eviction or spec.memory_records):
        yield "needs records of the KV memory; give --memory-records"
    if name in OF_SIDES and spec.prefill is None:
        yield "needs workers for prompts alone; give --prefill and --decode"
    if name == "demoted" and spec.admission is None:
        yield "needs admission control; set admission.policy"
    if name in ITL and spec.backend is None:
        yield LATENCIES["itl"]
    if name == "max_service_gap" and spec.clients == 1:
        yield "needs two clients, and the experiment has one"


def _chosen(spec: ExperimentSpec) -> tuple[int, ...]:
    return parse_percentiles(spec.percentiles or "")


def _rank(name: str) -> int:
    """Return the percentile of a metric such as ``p90_ttft_ms`` or ``victim_p90_s``."""
    return int(name.removeprefix(VICTIM).partition("_")[0].removeprefix("p"))


def _has_tenants(plans: Sequence[ClientPlan]) -> bool:
    return bool(tenants_of(named_below({plan.client: plan.owner for plan in plans}).values()))


def _instead_of(name: str, spec: ExperimentSpec) -> str:
    """Return the metric that measures the same without sessions, as a hint."""
    plain = name.replace("_ttft_", "_").replace("ttft_", "")
    same = "ttft_" in name and spec.workload.latency == "ttft" and plain in CATALOGUE
    return f"; {short_of(plain)} is the time to first token here" if same else ""
