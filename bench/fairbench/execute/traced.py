"""The flags of a run that replays a trace, as flags of the trace's workload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairbench.errors import UsageError
from fairbench.workloads.trace_workload import SCENARIO, trace_workload, with_heavy
from fairbench.workloads.traces.columns import given_columns
from fairbench.workloads.traces.read import TraceParams, joined_columns

# Facts that a trace states itself.
SAID = {"workload": "", "request_rate": ": give --time-scale", "dataset_path": "", "tokenizer": ""}


def traced(flags: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the flags with the trace flags in ``keys`` replaced by the trace's workload.

    ``clients`` are then synthetic, and ``time_scale`` applies to the trace. Raises UsageError for
    conflicting flags, DataError for a file that is not a trace.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    given = {name: value for name, value in given.items() if value is not False}
    rest = {name: value for name, value in flags.items() if name not in keys}
    if "trace" not in given:
        if alone := [key for key in keys if key in given]:
            raise UsageError(f"{alone[0]} needs --trace")
        return rest
    for name in (name for name in SAID if name in given):
        raise UsageError(
            f"{name} = {given[name]}: cannot be combined with --trace, which sets it{SAID[name]}"
        )
    if given.get("clients", 1) < 1:
        raise UsageError(f"clients = {given['clients']}: must be above 0")
    columns = dict(given.get("trace_map", {}))
    if "clients_from" in given:
        columns["client"] = given["clients_from"]
    given_columns(columns)
    params = TraceParams(
        file=str(given["trace"]),
        format=given.get("trace_format", "auto"),
        time_scale=given.get("time_scale", 1.0),
        columns=joined_columns(columns),
        clients=given.get("clients", 0),
        spread=given.get("trace_spread", False),
        line=given.get("trace_line", 0),
        block_size=given.get("trace_block_size", 0),
    )
    workload = with_heavy(trace_workload(params), given.get("misbehaving", ()))
    rest |= {"workload": workload, "clients": None, "time_scale": None}
    return rest | {"scenario": given.get("scenario", SCENARIO)}
