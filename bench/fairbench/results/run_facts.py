"""Inputs of a run's metrics: measured window, bound on the service gap, time models, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, NoBound, ServiceBound, ServiceWeights
from fairbench.errors import DataError, UsageError, choose_from
from fairbench.files.times import MAX_TIME_S
from fairbench.hardware.catalogue import is_known, load_profile
from fairbench.hardware.timing import ProfileCosts, TimingProfile
from fairbench.metrics import catalogue, records
from fairbench.metrics.metric import Better, Of
from fairbench.metrics.optional_entries import MEMORY, SESSIONS, SIDES
from fairbench.metrics.reasons import LATENCIES, NO_VICTIM
from fairbench.metrics.shown_percentiles import chosen_percentiles, parse_percentiles
from fairbench.metrics.tables import NOBODY, Memory, Tables
from fairbench.results.store import StoredRun
from fairbench.schedulers.base import LocalScheduler, Router
from fairbench.targets import NO_TARGETS, written_targets
from fairbench.tenants import named_below, tenants_of
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan, waits_for_earlier

if TYPE_CHECKING:
    import pyarrow as pa

    from fairbench.engine.contract import EngineContract


SESSION = "session"  # kind of a program that replays a recorded session


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
    fit: records.FitLimits | None = None,
    lone: records.LoneStep | None = None,
    prices: records.WorkPrices | None = None,
) -> records.Facts:
    """Return the data for the metrics of a run that ended at ``end_s`` seconds.

    If ``pool_tokens`` is 0, the size of the KV memory is unknown.
    """
    plans = tuple(plans)
    return records.Facts(
        clients=tuple(
            records.Client(
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
        prices=prices,
        closed_loop=frozenset(at for at, plan in enumerate(plans) if waits_for_earlier(plan)),
    )


def stored_facts(
    run: StoredRun,
    window: records.Window,
    bound: ServiceBound | None = None,
    bound_unavailable: str = "",
    percentiles: tuple[int, ...] = (),
) -> records.Facts:
    """Return a stored run's data for metrics, with the given window and ``percentiles``."""
    summary = run.summary
    return records.Facts(
        clients=tuple(
            records.Client(
                *(row["client"], row["misbehaving"], row.get("weight", 1.0)),
                written_targets(row.get("goodput_targets", "")),
                row.get("goodput_class", ""),
                row.get("owner", ""),
                records.Padding(row.get("padding_tokens", 0), row.get("output_multiple", 1)),
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


def padding_of(plan: ClientPlan) -> records.Padding:
    """Return the padding tokens in each request of a client."""
    if plan.disguise is None:
        return records.PLAIN
    return records.Padding(plan.disguise.padding_tokens, plan.disguise.output_multiple)


def fit_limits(profile_id: str | None) -> records.FitLimits | None:
    """Return the range of measurements to which a timing profile was fitted; None if unknown."""
    if profile_id is None or not is_known(profile_id):
        return None
    profile = load_profile(profile_id)
    domain, pool = profile.fit_domain, profile.pool
    if domain is None:
        return None
    return records.FitLimits(
        domain.decode_batch, domain.context_tokens or pool.tokens(pool.mem_fraction_static)
    )


def lone_step(profile_id: str) -> records.LoneStep | None:
    """Return the time of a decode step with a single request, or None for an unknown profile."""
    if not is_known(profile_id):
        return None
    profile = load_profile(profile_id)
    return records.LoneStep(profile.decode_ps(1, 0) / PS_PER_S, profile.context_ps / PS_PER_S)


def work_prices(
    profile: TimingProfile, *, pass_tokens: int, batch: int, mixed: bool
) -> records.WorkPrices:
    """Return lower bounds on the GPU time of requests, from a timing profile.

    Args:
        profile: The iteration times of the GPU and model.
        pass_tokens: The maximum number of tokens in a prefill pass, or in a mixed step.
        batch: The maximum number of requests that decode together.
        mixed: Whether a step of the engine can contain both prompt tokens and decoded tokens.
    """
    c = profile.coefficients_ms

    def linear_s(tokens: int) -> float:
        return profile.decode_ps(tokens, 0) / PS_PER_S - c["c_nd"] * tokens / 1000

    token_s = (linear_s(pass_tokens) + c.get("c_pf", 0.0) / 1000) / pass_tokens
    if mixed:
        token_s = linear_s(pass_tokens) / pass_tokens
    own_s = token_s if mixed else linear_s(batch) / batch
    return records.WorkPrices(
        token_s=token_s,
        request_s=c["c_npf"] / 1000,
        attention_s=c["c_A"] / 1000,
        read_s=c["c_K"] / 1000,
        decode_token_s=own_s + c["c_nd"] / 1000,
        context_s=profile.shared_read * profile.context_ps / PS_PER_S,
        lone_first_s=linear_s(1) + (c["c_npf"] + c.get("c_pf", 0.0)) / 1000,
        lone_token_s=profile.decode_ps(1, 0) / PS_PER_S,
        lone_context_s=profile.context_ps / PS_PER_S,
    )


def engine_prices(engine: EngineContract, profile: TimingProfile) -> records.WorkPrices:
    """Return lower bounds on the GPU time of requests, given an engine's batch limits."""
    return work_prices(
        profile,
        pass_tokens=engine.chunk_tokens,
        batch=min(engine.most_running, engine.pool_tokens),
        mixed=engine.mixed_steps,
    )


def costs_of(profile_id: str | None) -> ProfileCosts | None:
    """Return a timing profile's model of iteration times, or None if the profile is unknown."""
    known = profile_id is not None and is_known(profile_id)
    return ProfileCosts(load_profile(profile_id)) if known and profile_id else None


def run_window(spec: ExperimentSpec, last_arrival_s: float, now_s: float) -> records.Window:
    """Return the window of the metrics: from the end of the warm-up to the end of arrivals.

    The window is the whole run if the experiment asks for this, or if the window after the warm-up
    would be very short. The window is very short if all programs arrive at once or within the
    warm-up, or if the run is interrupted. A window of the whole run includes the time ``now_s``, at
    which the last tokens arrive.
    """
    whole = records.Window(0.0, nextafter(now_s, inf))
    end_s = spec.duration_s
    if end_s is None:
        end_s = last_arrival_s
        if end_s <= 2 * spec.warmup_s:
            return whole
    if spec.window == "whole" or now_s <= spec.warmup_s or last_arrival_s < spec.warmup_s:
        return whole
    return records.Window(spec.warmup_s, end_s)


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
    """Return the proven bound on a scheduler's service differences, or None and the reason."""
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


SomeTable = TypeVar("SomeTable", bound=records.Table)
MAX_COUNT = 2**53
# Worker numbers are limited because some metrics are lists with one entry per worker number.
MAX_WORKER = 2**16 - 1
RANGES = {  # allowed range of values in each integer column
    "worker": (-1, MAX_WORKER),
    "by": (NOBODY, MAX_COUNT),
    "change": (-MAX_COUNT, MAX_COUNT),
    "holders": (1, MAX_COUNT),
}
STATES = dict(
    zip(records.STATUS_NAMES, (records.FINISHED, records.REFUSED, records.UNFINISHED), strict=True)
)


def read_tables(run: StoredRun) -> Tables:
    """Return the stored tables of a run.

    Raises DataError for an unreadable table, and for a table with wrong columns.
    """
    return Tables(
        [row["client"] for row in run.summary["clients"]],
        _read_table(run, "requests", records.Requests),
        _read_table(run, "programs", records.Programs),
        read_service(run),
        _read_table(run, "memory", Memory) if run.has_table("memory") else None,
    )


def read_service(run: StoredRun) -> records.Service:
    """Return the service log of a run. Raises the same errors as ``read_tables``."""
    return _read_table(run, "service", records.Service)


def _read_table(run: StoredRun, name: str, kind: type[SomeTable]) -> SomeTable:
    clients = {row["client"]: number for number, row in enumerate(run.summary["clients"])}
    codes = {"client": clients, "status": STATES, "by": {"": NOBODY, **clients}}
    table, where = run.table(name), f"{run.path / name}.parquet"
    _check_types(table, kind, where)
    made = kind.from_columns(_numpy_columns(table, codes, str(run.path)))
    _check_values(made, where)
    return made


def _check_types(table: pa.Table, kind: type[records.Table], where: str) -> None:
    """Raise DataError if a column is missing or cannot be converted to its type."""
    from pyarrow import types

    for column in fields(kind):
        if table.column_names.count(column.name) > 1:
            raise DataError(f"{where}: column {column.name!r} appears twice")
        if column.name not in table.column_names:
            continue
        values, named = table.column(column.name), column.name in ("client", "status", "by")
        integers, floats = types.is_integer(values.type), types.is_floating(values.type)
        fits = types.is_dictionary(values.type) if named else integers
        if not (fits or (floats and "Floats" in str(column.type))):
            raise DataError(f"{where}: column {column.name!r} cannot be of type {values.type}")
        if values.null_count:
            raise DataError(f"{where}: column {column.name!r}: a value is missing")


def _check_values(table: records.Table, where: str) -> None:
    for name, values in table.to_columns().items():
        if values.dtype == np.float64:
            wrong = np.isinf(values) | (np.abs(values) > MAX_TIME_S)
        else:
            least, most = RANGES.get(name, (0, MAX_COUNT))
            wrong = (values < least) | (values > most)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"{where}, row {row + 1}: {name} = {values[row]}: out of range")


def _numpy_columns(table: pa.Table, codes: dict[str, dict[str, int]], where: str) -> dict[str, Any]:
    """Return the columns as numpy arrays, with numbers in place of client names and states."""
    import pyarrow.compute as pc

    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if name not in codes:
            columns[name] = column.to_numpy(zero_copy_only=False)
            continue
        encoded = column if hasattr(column, "dictionary") else pc.dictionary_encode(column)
        try:
            numbers = [codes[name][value] for value in encoded.dictionary.to_pylist()]
        except KeyError as error:
            raise DataError(
                f"{where}: {name} {error} is missing in the summary of the run"
            ) from None
        columns[name] = np.array(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return columns


OF_SESSIONS, OF_MEMORY, OF_SIDES = (
    frozenset(metric.key for metric in entries) for entries in (SESSIONS, MEMORY, SIDES)
)
ITL = frozenset(f"{statistic}_itl_ms" for statistic in ("median", "std", "p50", "p99"))
VICTIM = "victim_"


def check_metrics_of(keys: Iterable[str], specs: Sequence[ExperimentSpec], option: str) -> None:
    """Raise UsageError for a metric that is unknown, undefined, or does not rank schedulers.

    Args:
        keys: Keys or short names of the metrics.
        specs: Experiments that will run. A metric that is undefined in all experiments of ``specs``
            is refused.
        option: The flag that the error message names.
    """
    for name in keys:
        key = catalogue.known_key(name)
        entry = catalogue.metric_of(key)
        if entry is None or entry.better is Better.NEITHER:
            raise UsageError(
                f"{option} {name}: neither higher nor lower is better; choose another metric"
            )
        reasons = [why_missing(key, spec) for spec in specs]
        if reasons and all(reasons):
            raise UsageError(f"{option} {name}: {reasons[0]}")


def why_missing(key: str, spec: ExperimentSpec) -> str:
    """Return why an experiment cannot have a value of a metric, or "" if a value is possible.

    A metric's value is possible if at least some runs of the experiment can have a value.
    """
    name, key = catalogue.metric_name(catalogue.key_of(key)), catalogue.key_of(key)
    plans = spec.client_plans()
    if key.startswith(catalogue.CLIENTS):
        client = key.removeprefix(catalogue.CLIENTS).rpartition(".")[0]
        if client not in (names := [plan.client for plan in plans]):
            return f"unknown client {client!r}: {choose_from(client, sorted(names))}"
    entry, alone = catalogue.metric_of(key), f"{catalogue.CLIENTS}{plans[0].client}.{name}"
    if entry and entry.of is (Of.RUN if key.startswith(catalogue.CLIENTS) else Of.CLIENT):
        whole = f"is a metric of the whole run; write {catalogue.short_of(name)}"
        return whole if entry.of is Of.RUN else f"is a metric of one client; write {alone}"
    if name.startswith(VICTIM) and all(plan.misbehaving for plan in plans):
        return f"{NO_VICTIM} in scenario {spec.scenario}"
    return next(_reasons(name, spec, plans), "")


def _reasons(name: str, spec: ExperimentSpec, plans: Sequence[ClientPlan]) -> Iterator[str]:
    """Yield reasons why an experiment cannot have a value of a metric, each with a remedy."""
    if name in OF_SESSIONS and not has_sessions(spec.workload):
        yield (
            f"needs a workload of recorded sessions, and {spec.workload.name} has none"
            f"{_instead_of(name, spec)}"
        )
    if "gate_wait" in name and spec.gateway is None:
        yield "needs a gateway; give --gateway"
    # ``name`` may be a percentile of a latency, such as p90_ttft_ms or victim_p90_s.
    if name not in catalogue.CATALOGUE:
        rank = int(name.removeprefix(VICTIM).partition("_")[0].removeprefix("p"))
        if rank not in parse_percentiles(spec.percentiles or ""):
            yield f"needs this percentile to be chosen; give --percentiles {rank}"
    if "goodput" in name and all(plan.targets == NO_TARGETS for plan in plans):
        yield "goodput needs latency targets; give them with --goodput"
    owners = {plan.client: plan.owner for plan in plans}
    if name.startswith("tree_") and not tenants_of(named_below(owners).values()):
        yield "the workload has no tenants; use client names of the form TENANT/CLIENT"
    if name in OF_MEMORY and not spec.records_memory:
        yield "needs records of the KV memory; give --memory-records"
    if name in OF_SIDES and spec.prefill is None:
        yield "needs workers for prompts alone; give --prefill and --decode"
    if name == "demoted" and spec.admission is None:
        yield "needs admission control; set admission.policy"
    if name in ITL and spec.backend is None:
        yield LATENCIES["itl"]
    if name == "max_service_gap" and spec.clients == 1:
        yield "needs two clients, and the experiment has one"


def _instead_of(name: str, spec: ExperimentSpec) -> str:
    """Return a hint to a similar metric for runs without sessions, or "" if there is none."""
    plain = name.replace("_ttft_", "_").replace("ttft_", "")
    same = "ttft_" in name and spec.workload.latency == "ttft" and plain in catalogue.CATALOGUE
    return f"; {catalogue.short_of(plain)} is the time to first token here" if same else ""
