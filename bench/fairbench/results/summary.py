"""Summaries of runs: header, values for comparisons, and the schema of the stored file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, create_model

from fairbench import workloads
from fairbench.config import ExperimentSpec
from fairbench.config.cluster import ENGINE_CODE
from fairbench.core import ServiceBound
from fairbench.errors import DataError, UsageError, of_file, unknown_name
from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, chosen_metrics, metric_name, metric_of
from fairbench.metrics.metric import Better, Kind, Metric, Of, Presence
from fairbench.metrics.shown_percentiles import chosen_percentiles
from fairbench.schedulers.peers import ROUTERS
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.programs import program_class


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
    """Return the first part of a run's summary, which describes the experiment.

    ``served`` describes real or emulated servers (keys ``emulated``, ``backend``, ``served``) and
    is None for the simulator. Sizes such as ``pool_tokens`` are in tokens, or None if unknown.
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
        **(workloads.trace_facts(spec.workload) if spec.workload.plays_trace else {}),
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
    """Return the replicas of an experiment or summary: ``dp 4``, or ``prefill 2 decode 2``."""
    if described.get("prefill") is None:
        return f"dp {described['dp']}"
    return f"prefill {described['prefill']} decode {described['decode']}"


def scheduler_name(described: Mapping[str, Any], *, detector: bool = False) -> str:
    """Return the scheduler's name in an experiment or summary, with the gateway's name, if any.

    If ``detector`` is True, the name also contains the gateway's saturation detector.
    """
    name = str(described["scheduler"])
    if described.get("eviction") is not None:
        name = f"{name} with {described['eviction']} eviction"
    if described.get("gateway") is None:
        return name
    by = f" by {described['saturation']}" if detector else ""
    return f"{name} behind {described['gateway']}{by}"


def cluster_line(summary: Mapping[str, Any]) -> str:
    """Return a line that describes a run by its hardware, replicas, scheduler and seed."""
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
    return f"simulated on {summary['timing_profile']}{error}{engine}{decided_by(summary)}"


def decided_by(summary: Mapping[str, Any]) -> str:
    """Return ", decided by ENGINE" if an installed engine's code scheduled the run, or else ""."""
    code = summary.get(ENGINE_CODE)
    if not code:
        return ""
    charged = ", with the measured time of its passes (not reproducible)"
    return f", decided by {code_name(code)}{charged if code.get('charges_pass') else ''}"


def code_name(code: Mapping[str, Any]) -> str:
    """Return a short text on an engine's installed code: engine, version, commit and digest."""
    changed = len(code["changed"])
    files = f", {changed} changed file{'s' * (changed != 1)}" if changed else ""
    at = f" at {code['commit'][:8]}" if code["commit"] else ""
    return f"{code['engine']} {code['version']}{at} (code {code['digest'][:8]}{files})"


def is_same_code(code: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two runs used equal engine code: engine, version and hash of the files.

    Git commits are not compared, because different commits may contain equal scheduler files.
    """
    return all(code[key] == other[key] for key in ("engine", "version", "digest"))


def bases(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return a text with the origins of the numbers in several summaries, without repetitions."""
    return "; ".join(dict.fromkeys(map(basis, summaries)))


NOBODY_NAMED = (
    "every client counts as well-behaved, because --misbehaving names none; "
    "`fairbench diagnose` finds heavy clients"
)


def is_nobody_named(summary: Mapping[str, Any]) -> bool:
    """Return whether a trace with several clients was replayed and no client is marked as heavy."""
    clients = summary.get("clients", ())
    heavy = any(one["misbehaving"] for one in clients)
    return bool(summary.get("trace")) and len(clients) > 1 and not heavy


def trace_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return lines that name the replayed trace and the trace's synthetic fields."""
    lines = [f"trace {summary['trace']}"] if summary.get("trace") else []
    return lines + ([f"SYNTHETIC: {summary['synthetic']}"] if summary.get("synthetic") else [])


def details_line(summary: Mapping[str, Any]) -> str:
    """Return a line with the router, local scheduler, workload and memory of a run."""
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


class Value(NamedTuple):
    """The value of a metric in a summary.

    ``bound`` is ``>`` or ``<`` if ``raw`` is only a lower or upper bound of the true value, and ""
    if ``raw`` is exact. If ``raw`` is None, ``reason`` explains why the value is undefined.
    """

    raw: Any
    bound: str = ""
    reason: str = ""

    @property
    def is_number(self) -> bool:
        """Return whether the value is a finite number that can be compared."""
        return isinstance(self.raw, int | float) and not isinstance(self.raw, bool)

    @property
    def exact(self) -> Fraction:
        """Return the decimal number ``raw`` as an exact fraction.

        Raises DataError if the value is a text.
        """
        try:
            return Fraction(str(self.raw))
        except ValueError:
            raise DataError(f"metric value {self.raw!r} in a summary: must be a number") from None

    @property
    def text(self) -> str:
        """The value as text with all its digits, not rounded as in a table."""
        if self.raw is None:
            return "undefined"
        return f"{self.bound} {self.raw}" if self.bound else str(self.raw)


ABSENT = Value(None, reason="not in the summary")


def values_of(summary: Mapping[str, Any]) -> dict[str, Value]:
    """Return every plain value of a summary by key; a client's keys are ``clients.NAME.KEY``."""
    bounds = dict.fromkeys(summary["censored"], ">")
    bounds |= dict.fromkeys(summary.get("upper_bounds", ()), "<")
    flat = {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
    for client in summary["clients"]:
        flat |= {f"{CLIENTS}{client['client']}.{key}": value for key, value in client.items()}
    reasons = summary.get("notes", {})
    return {
        key: Value(value, bounds.get(key, ""), reasons.get(key, "") if value is None else "")
        for key, value in flat.items()
    }


def value_of(summary: Mapping[str, Any], key: str) -> Value:
    """Return the value of a metric in a summary, or ``ABSENT`` if the summary lacks the metric."""
    row: Mapping[str, Any] | None = summary
    if key.startswith(CLIENTS):
        client = key.removeprefix(CLIENTS).rpartition(".")[0]
        row = next((one for one in summary["clients"] if one["client"] == client), None)
    raw = None if row is None else row.get(metric_name(key), ABSENT)
    if raw is ABSENT or row is None:
        return ABSENT
    upper = key in summary.get("upper_bounds", ())
    bound = ">" if key in summary["censored"] else "<" if upper else ""
    return Value(raw, bound, summary.get("notes", {}).get(key, "") if raw is None else "")


def more_is_better(metric: str, known: Collection[str]) -> bool:
    """Return whether a higher value of a metric is better.

    ``known`` contains the keys of all summaries that are compared. Raises UsageError if the metric
    is unknown, or if neither higher nor lower values are better.
    """
    if metric not in known:
        ours = metric.startswith(CLIENTS)
        alike = (one for one in known if one.startswith(CLIENTS) == ours)
        raise unknown_name("metric", metric, filter(_has_a_worse_side, alike))
    if not _has_a_worse_side(metric):
        raise UsageError(
            f"metric {metric!r}: neither higher nor lower is better; choose another metric"
        )
    return _better(metric) is Better.MORE


def _has_a_worse_side(metric: str) -> bool:
    return _better(metric) is not Better.NEITHER


def _better(metric: str) -> Better:
    known = metric_of(metric)
    return known.better if known else Better.NEITHER


Number = float | None
Count = Annotated[int, Field(lt=2**63)]
TYPES: Mapping[Kind, Any] = {Kind.NUMBER: float, Kind.COUNT: Count, Kind.FLAG: bool}


class _Shown(BaseModel):
    model_config = ConfigDict(strict=True)


class _Client(_Shown):
    client: str
    misbehaving: bool


class _Waiting(_Shown):
    wait_p50_s: Number
    run_wait_p50_s: Number
    waiting: Number
    others_waiting: Number
    worker: Count | None
    worker_ratio: Number
    arrivals_ratio: Number
    admitted: Count
    hit_rate: Number
    run_hit_rate: Number


class _Window(_Shown):
    start_s: float
    end_s: float
    share: float
    client: str
    heavy_client: str | None
    heavy_share: float | None = None
    why: _Waiting | None = None


class _Eviction(_Shown):
    client: str
    by: str
    tokens: float


class _Pinned(_Shown):
    allocations: Count
    beyond: Count
    lost_tokens: float


class _Stalled(_Shown):
    client: str
    by: str
    s: float


class _StallCause(_Shown):
    client: str
    request: str
    start_s: float
    gap_s: float
    by: str | None
    by_request: str | None
    sent_s: Number
    prompt_tokens: Count | None
    stalls: Count
    clients: Count


class _Session(_Shown):
    session: str
    client: str
    turns: Count
    longest_wait_s: float
    wait_s: float
    slowdown: Number
    turns_per_min: Number
    share: Number
    share_60s: Number


class _Tenant(_Shown):
    tenant: str
    clients: Count
    weight: float
    service_rate_tok_s: Number
    tree_share: Number


class _GoodputClass(_Shown):
    name: str = Field(alias="class")
    goodput_ratio: Number


class _Run(_Shown):
    simulated: bool
    emulated: bool = False
    served: str = ""
    trace: str = ""
    synthetic: str = ""
    timing_profile: str | None
    timing_error_pct: Number = None
    scheduler: str
    router: str
    local: str
    workload: str
    scenario: str
    dp: Count
    prefill: Count | None = None
    decode: Count | None = None
    seed: Count
    latency: str = ""
    think_time: bool | None = None
    pool_tokens: Count | None = None
    mem_fraction_static: Number = None
    pool_flag: str = "--max-total-tokens"
    token_count_method: str | None = None
    bound_source: str | None = None
    limit_cause: str = ""
    censored: list[str] = []
    notes: dict[str, str] = {}
    worst_windows: list[_Window] = []
    evictions: list[_Eviction] = []
    pinned_beyond_share: _Pinned | None = None
    stalled: list[_Stalled] = []
    stall_causes: list[_StallCause] = []
    worst_sessions: list[_Session] = []
    tenants: list[_Tenant] = []
    goodput_classes: list[_GoodputClass] = []


class _Whole(_Shown):
    complete: bool
    latency: Literal["program", "ttft"]
    pool_tokens: Count | None
    bound_source: str | None
    censored: list[str]
    notes: dict[str, str]


class Schemas(NamedTuple):
    """Two schemas of summaries: one for all summaries, and a stricter one for reports."""

    shown: type[BaseModel]
    whole: type[BaseModel]


def check_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Raise DataError if the summary lacks a key or has a value of a wrong type."""
    with of_file(f"{path}"):
        _schemas(_ranks(summary, path)).shown.model_validate(summary)


def check_whole(summary: Mapping[str, Any], path: Path) -> None:
    """Raise DataError unless the summary has every key that reports and ``score`` need."""
    schemas = _schemas(_ranks(summary, path))
    with of_file(f"{path}"):
        schemas.shown.model_validate(summary)
        schemas.whole.model_validate(summary)


def _ranks(summary: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    try:
        return chosen_percentiles(summary)
    except UsageError as error:
        raise DataError(f"{path}: {error}") from None


def _schemas(ranks: tuple[int, ...]) -> Schemas:
    own = (one for one in chosen_metrics(ranks) if one.key not in CATALOGUE)
    chosen = (replace(one, presence=Presence.ALWAYS) for one in own)
    return _schemas_of((*CATALOGUE.values(), *chosen))


@lru_cache(maxsize=8)
def _schemas_of(metrics: tuple[Metric, ...]) -> Schemas:
    of_run = [metric for metric in metrics if metric.of is not Of.CLIENT]
    of_client = [metric for metric in metrics if metric.of is not Of.RUN]
    client = _with_metrics("_ClientMetrics", _Client, of_client)
    run = _with_metrics("_RunMetrics", _Run, of_run)
    in_reports: dict[str, Any] = {
        metric.key: (_type(metric), ...)
        for metric in of_run
        if metric.presence is Presence.IN_REPORTS
    }
    # The type ``client`` is built at run time, so mypy does not accept ``list[client]``.
    clients: Any = GenericAlias(list, client)
    return Schemas(
        create_model("_Summary", __base__=run, clients=(clients, ...)),
        create_model("_WholeSummary", __base__=_Whole, **in_reports),
    )


def _with_metrics(name: str, base: type[BaseModel], metrics: list[Metric]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        metric.key: (_type(metric), ...)
        if metric.presence is Presence.ALWAYS
        else (TYPES[metric.kind] | None, None)
        for metric in metrics
    }
    return create_model(name, __base__=base, **fields)


def _type(metric: Metric) -> Any:
    return TYPES[metric.kind] | None if metric.nullable else TYPES[metric.kind]
