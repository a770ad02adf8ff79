"""The schema of a summary to be shown, which a user may have edited.

The experiment's keys are listed here, metrics are those of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, create_model

from fairbench.errors import DataError, UsageError, of_file
from fairbench.metrics.catalogue import CATALOGUE, chosen_metrics
from fairbench.metrics.metric import Kind, Metric, Of, Presence
from fairbench.metrics.shown_percentiles import chosen_percentiles

Number = float | None
Count = Annotated[int, Field(lt=2**63)]
TYPES: Mapping[Kind, Any] = {Kind.NUMBER: float, Kind.COUNT: Count, Kind.FLAG: bool}


class _Shown(BaseModel):
    model_config = ConfigDict(strict=True)


class _Client(_Shown):
    client: str
    misbehaving: bool


class _Window(_Shown):
    start_s: float
    end_s: float
    share: float
    client: str
    heavy_client: str | None


class _Eviction(_Shown):
    client: str
    by: str
    tokens: float


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
    censored: list[str] = []
    notes: dict[str, str] = {}
    worst_windows: list[_Window] = []
    evictions: list[_Eviction] = []
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
    """The schema of every summary, and a stricter schema for summaries of a report."""

    shown: type[BaseModel]
    whole: type[BaseModel]


def check_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Raise DataError, one line, for a missing key or a wrong type in the summary."""
    with of_file(f"{path}"):
        _schemas(_ranks(summary, path)).shown.model_validate(summary)


def check_whole(summary: Mapping[str, Any], path: Path) -> None:
    """Check every key that a report or a new score needs; no key is optional."""
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
    clients: Any = GenericAlias(list, client)  # schema of a type that is built here
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
