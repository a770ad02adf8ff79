"""Workloads that replay a trace, with its clients, duration and programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, fields, replace
from math import floor
from pathlib import Path

from fairbench.errors import UsageError, printable, unknown_name
from fairbench.workloads.model import MAX_NAME, Arrivals, Misbehaving, Scenario, WorkloadSpec
from fairbench.workloads.traces import DRAWN
from fairbench.workloads.traces.programs import FileTraffic
from fairbench.workloads.traces.read import MAX_CLIENTS, TraceParams, check_params, read_trace
from fairbench.workloads.traffic.recorded import ReplayTraffic

KIND = "replay"  # the kind of arrivals and programs that replay a trace
SCENARIO = "recorded"
SYNTHETIC = "synthetic"
MAX_DRAIN_S = 600.0
WARMUP_SHARE, LONGEST_WARMUP_S = 0.1, 60.0


def trace_workload(params: TraceParams) -> WorkloadSpec:
    """Return the workload that replays a trace, with the SHA-256 digest of the trace file.

    If some of the trace's traffic is synthetic, the workload's name ends in ``-synthetic``.
    """
    check_params(params)
    read = read_trace(params)
    trace = read.trace
    if len(trace.clients) > MAX_CLIENTS:
        raise UsageError(
            f"trace {params.file}: has {len(trace.clients):,} clients, and at most "
            f"{MAX_CLIENTS:,} are allowed; `fairbench trace cut --largest N` keeps the "
            "clients with the most requests"
        )
    params = replace(params, format=read.format, sha256=read.sha256)
    duration_s = floor(trace.span_s / params.time_scale) + 1.0
    usual = {field.name: field.default for field in fields(TraceParams)}
    return WorkloadSpec(
        name=_workload_name(params, synthetic=bool(synthetic_parts(params, trace))),
        description="a recorded trace",
        program=KIND,
        latency="program" if trace.pauses else "ttft",
        clients=len(trace.clients),
        client_names=plain_names(trace.clients),
        arrivals=Arrivals(
            kind=KIND, params={k: v for k, v in asdict(params).items() if v != usual[k]}
        ),
        duration_s=duration_s,
        warmup_s=min(LONGEST_WARMUP_S, WARMUP_SHARE * duration_s),
        max_drain_s=MAX_DRAIN_S,
        params={"pauses": trace.pauses},
        scenarios={SCENARIO: Scenario(description="as recorded", rate=1.0)},
    )


def with_heavy(workload: WorkloadSpec, names: Collection[str]) -> WorkloadSpec:
    """Mark the named clients of a trace's workload as heavy.

    Heavy clients replay the trace unchanged, but metrics of well-behaved clients omit heavy
    clients. Raises UsageError for an unknown client.
    """
    if not names:
        return workload
    known = workload.client_names or ()
    for name in names:
        if name not in known:
            raise unknown_name("client in --misbehaving", name, known)
    heavy = tuple(Misbehaving(client=known.index(name)) for name in dict.fromkeys(names))
    recorded = workload.scenarios[SCENARIO].model_copy(update={"misbehaving": heavy})
    return workload.model_copy(update={"scenarios": {SCENARIO: recorded}})


def trace_facts(workload: WorkloadSpec) -> dict[str, str]:
    """Return texts about a workload's trace (``trace``, ``synthetic``), or {} without a trace."""
    params = params_of(workload)
    if params is None:
        return {}
    read = read_trace(params)
    speed = "as recorded" if params.time_scale == 1 else f"{params.time_scale:g} times as fast"
    said = [params.file, read.format, f"sha256 {read.sha256[:12]}", speed]
    if read.trace.left_out:
        said.append(f"{read.trace.left_out:,} {read.trace.who_left_out} left out")
    facts = {"trace": printable(", ".join(said))}
    if synthetic := synthetic_parts(params, read.trace):
        facts[SYNTHETIC] = "; ".join(synthetic)
    return facts


def trace_manifest(workload: WorkloadSpec) -> dict[str, str]:
    """Return facts about the trace for the manifest, such as ``trace_sha256``."""
    params = params_of(workload)
    if params is None:
        return {}
    read = read_trace(params)
    names = read.trace.clients
    renamed = [
        f"{plain} = {printable(name)}"
        for plain, name in zip(plain_names(names), names, strict=True)
        if plain != name
    ]
    return {
        **trace_facts(workload),
        "trace_sha256": read.sha256,
        **({"trace_renamed": "; ".join(renamed)} if renamed else {}),
    }


def params_of(workload: WorkloadSpec) -> TraceParams | None:
    """Return the parameters of a workload's trace, or None for a workload without a trace."""
    traffic = workload.traffic()
    return traffic.params if isinstance(traffic, ReplayTraffic) else None


def plain_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return client names that are unique and allowed in a workload file.

    Characters other than letters, digits, - and _ become _. Names that would become equal get a
    number as a suffix.
    """
    given = tuple(names)
    kept = {name for name in given if _plain_name(name) == name}
    found: dict[str, None] = {}
    for name in given:
        if name in kept:
            found[name] = None
            continue
        plain = _plain_name(name)
        number, unique = 1, plain
        while unique in found or unique in kept:
            number += 1
            unique = f"{plain}_{number}"
        found[unique] = None
    return tuple(found)


def _plain_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).lstrip("_-")[: MAX_NAME - 6] or "client"
    return re.sub(r"^client-(?=\d+$)", "client_", plain)


def synthetic_parts(params: TraceParams, trace: FileTraffic) -> list[str]:
    """Return descriptions of the parts of the traffic that were made up instead of recorded."""
    found = [printable(part) for part in trace.synthetic]
    if params.clients:
        found.append(f"the {params.clients} clients are made up, by Zipf's law")
    if params.spread:
        found.append("batched arrivals are spread out")
    if trace.drawn:
        found.append(DRAWN)
    return found


def _workload_name(params: TraceParams, *, synthetic: bool) -> str:
    stem = Path(params.file).name.removesuffix(".gz").rpartition(".")[0] or "file"
    ending = f"-{SYNTHETIC}" if synthetic else ""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", stem)
    return f"trace-{plain}"[: MAX_NAME - len(ending)] + ending
