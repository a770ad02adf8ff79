"""The flags of a run that replays a trace, as flags of the trace's workload."""

from __future__ import annotations

from fairbench.config.flags.flag import Placed
from fairbench.config.flags.run import RUN
from fairbench.errors import UsageError
from fairbench.workloads.trace_workload import SCENARIO, trace_workload, with_heavy
from fairbench.workloads.traces.columns import given_columns
from fairbench.workloads.traces.read import TraceParams, joined_columns

# Facts that a trace states itself.
SAID = {"workload": "", "request_rate": ": give --time-scale", "dataset_path": "", "tokenizer": ""}


def traced(given: Placed) -> Placed:
    """Return the given flags with those of a trace replaced by the trace's workload.

    ``clients`` are then synthetic, and ``time_scale`` applies to the trace. Raises UsageError for
    conflicting flags, DataError for a file that is not a trace.
    """
    trace, keys, backend = given.trace, given.keys, given.backend
    if "file" not in trace:
        for name, one in RUN.items():
            if one.key.removeprefix("trace.") in trace:
                raise UsageError(f"{name} needs --trace")
        return given
    for name in (name for name in SAID if name in keys):
        raise UsageError(
            f"{name} = {keys[name]}: cannot be combined with --trace, which sets it{SAID[name]}"
        )
    if keys.get("clients", 1) < 1:
        raise UsageError(f"clients = {keys['clients']}: must be above 0")
    columns = dict(trace.get("columns", {}))
    if "client" in trace:
        columns["client"] = trace["client"]
    given_columns(columns)
    params = TraceParams(
        file=str(trace["file"]),
        format=trace.get("format", "auto"),
        time_scale=backend.get("time_scale", 1.0),
        columns=joined_columns(columns),
        clients=keys.get("clients", 0),
        spread=trace.get("spread", False),
        line=trace.get("line", 0),
        block_size=trace.get("block_size", 0),
    )
    workload = with_heavy(trace_workload(params), trace.get("misbehaving", ()))
    rest = {key: value for key, value in keys.items() if key != "clients"}
    return given._replace(
        keys={"scenario": SCENARIO} | rest | {"workload": workload},
        backend={key: value for key, value in backend.items() if key != "time_scale"},
        trace={},
    )
