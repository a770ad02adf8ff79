"""What a summary must hold to be shown: it may come from a file that someone edited."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairbench.errors import DataError
from fairbench.errors.validation import explain

Number = float | None
Count = Annotated[int, Field(lt=2**63)]


class _Shown(BaseModel):
    model_config = ConfigDict(strict=True)


class _Client(_Shown):
    client: str
    misbehaving: bool
    programs: Count
    service_rate_tok_s: Number
    actual_service_tok_s: Number
    entitlement_ratio: Number
    p50_s: Number
    p99_s: Number
    latency_n: Count | None = None
    cache_hit_rate: Number


class _Summary(_Shown):
    simulated: bool
    emulated: bool = False
    served: str = ""
    timing_profile: str | None
    timing_error_pct: Number = None
    scheduler: str
    router: str
    local: str
    workload: str
    scenario: str
    dp: Count
    seed: Count
    latency: str = ""
    pool_tokens: Count | None = None
    mem_fraction_static: Number = None
    token_count_method: str | None = None
    duration: float
    num_requests: Count
    num_programs: Count
    completed: Count
    failed: Count
    refused: Count
    service_rate_tok_s: Number
    output_throughput: Number
    output_rate_tok_s: Number = None
    extend_rate_tok_s: Number = None
    window_start_s: Number = None
    window_end_s: Number = None
    demand_limited: bool | None = None
    jain_index: Number
    jain_index_actual: Number
    jain_index_maxmin: Number
    jain_index_entitlement: Number
    jain_index_paper_window: Number = None
    paper_window_start_s: Number = None
    paper_window_end_s: Number = None
    min_entitlement_ratio: Number
    max_service_gap: Number
    service_gap_bound: Number
    service_gap_bound_s: Number = None
    bound_source: str | None = None
    victim_p50_s: Number
    victim_p95_s: Number = None
    victim_p99_s: Number
    victim_n: Count | None = None
    time_to_50pct_s: Number = None
    time_to_90pct_s: Number = None
    time_to_100pct_s: Number = None
    clients: list[_Client]
    censored: list[str] = []
    notes: dict[str, str] = {}


class _Whole(_Shown):
    complete: bool
    latency: Literal["program", "ttft"]
    pool_tokens: Count | None
    bound_source: str | None
    window_start_s: float
    window_end_s: float
    queue_empty_share: Number
    demand_limited: bool | None
    victim_n: Count
    censored: list[str]
    notes: dict[str, str]


def check_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Raise DataError, one line, if a key of the summary in ``path`` is missing or of wrong type.

    Keys that are not shown are not looked at.
    """
    try:
        _Summary.model_validate(summary)
    except ValidationError as error:
        raise DataError(f"{path}: {explain(error)}") from None


def check_whole(summary: Mapping[str, Any], path: Path) -> None:
    """The same of everything that a report or a new score is made from: no key is optional."""
    check_summary(summary, path)
    try:
        _Whole.model_validate(summary)
    except ValidationError as error:
        raise DataError(f"{path}: {explain(error)}") from None
