"""The keywords of ``run``, ``compare`` and ``sweep``: the flags of the commands of these names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class RunFlags(TypedDict, total=False):
    """Flags of ``fairbench run``: what they mean is in its ``--help``."""

    scheduler: str | None
    router: str | None
    local: str | None
    routers: int | None
    gateway: str | None
    saturation: str | None
    dp: int | None
    prefill: int | None
    decode: int | None
    workload: str | None
    trace: str | None
    trace_format: str | None
    trace_map: Mapping[str, str] | None
    trace_line: int | None
    trace_block_size: int | None
    trace_spread: bool
    clients_from: str | None
    misbehaving: Sequence[str] | None
    scenario: str | None
    gpu: str | None
    model: str | None
    engine: str | None
    eviction: str | None
    memory_records: bool | None
    num_programs: int | None
    request_rate: float | None
    burstiness: float | None
    clients: int | None
    weights: Mapping[str, float] | None
    goodput: Mapping[str, str] | None
    percentiles: str | None
    duration: float | None
    window: str | None
    seed: int | None
    preset: str | None
    mem_fraction_static: float | None
    max_total_tokens: int | None
    max_running_requests: int | None
    chunked_prefill_size: int | None
    max_prefill_tokens: int | None
    schedule_conservativeness: float | None
    timing_error: float | None
    dataset_path: str | None
    tokenizer: str | None
    backend: str | None
    base_url: str | None
    api: str | None
    output_lengths: str | None
    extra_body: str | None
    max_tokens_field: str | None
    rate_limited: str | None
    max_concurrency: int | None
    tp: int | None
    share_gpus: bool
    schedule_policy: str | None
    load_format: str | None
    server_args: Sequence[str] | None
    time_scale: float | None
    router_command: Sequence[str] | None
    tag: str | None


class CompareFlags(TypedDict, total=False):
    """Flags of ``fairbench compare``: what they mean is in its ``--help``."""

    workload: str | None
    scenario: str | None
    dp: int | None
    prefill: int | None
    decode: int | None
    gateway: str | None
    saturation: str | None
    gpu: str | None
    model: str | None
    backend: str | None
    num_programs: int | None
    request_rate: float | None
    weights: Mapping[str, float] | None
    goodput: Mapping[str, str] | None
    percentiles: str | None
    duration: float | None
    seed: int | None
    preset: str | None
    engine: str | None
    trace: str | None
    trace_format: str | None
    trace_map: Mapping[str, str] | None
    trace_line: int | None
    trace_block_size: int | None
    trace_spread: bool
    clients_from: str | None
    misbehaving: Sequence[str] | None
    time_scale: float | None


class SweepFlags(TypedDict, total=False):
    """Flags of ``fairbench sweep``: what they mean is in its ``--help``."""

    schedulers: Sequence[str] | None
    gateways: Sequence[str] | None
    saturations: Sequence[str] | None
    evictions: Sequence[str] | None
    routers: int | Sequence[int] | None
    workloads: Sequence[str] | None
    scenarios: Sequence[str] | None
    dp: int | Sequence[int] | None
    prefill: int | Sequence[int] | None
    decode: int | Sequence[int] | None
    request_rate: float | Sequence[float] | None
    clients: int | Sequence[int] | None
    router: str | Sequence[str] | None
    local: str | Sequence[str] | None
    weights: Mapping[str, float] | None
    goodput: Mapping[str, str] | None
    percentiles: str | None
    gpu: str | None
    model: str | None
    backend: str | None
    num_programs: int | None
    duration: float | None
    seed: int | None
    preset: str | None
