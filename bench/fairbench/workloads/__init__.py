"""Workloads: programs that clients send, arrival processes, workload files and data sets.

``spec.load_workload`` reads a workload file, ``clients.plan_clients`` plans the clients of a run,
and ``plan.program_stream`` yields the programs of a client.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.workloads.datasets import load_source as load_source
    from fairbench.workloads.spec import load_workload as load_workload
    from fairbench.workloads.spec import workload_names as workload_names
    from fairbench.workloads.trace_workload import synthetic_parts as synthetic_parts
    from fairbench.workloads.trace_workload import trace_facts as trace_facts
    from fairbench.workloads.trace_workload import trace_manifest as trace_manifest
    from fairbench.workloads.traces import NEEDED as NEEDED
    from fairbench.workloads.traces.read import TraceParams as TraceParams
    from fairbench.workloads.traces.read import joined_columns as joined_columns
    from fairbench.workloads.traces.read import read_trace as read_trace
    from fairbench.workloads.traces.read import trace_reader as trace_reader

__getattr__ = lazy_names(
    __name__,
    {
        "datasets": "load_source",
        "spec": "load_workload workload_names",
        "trace_workload": "synthetic_parts trace_facts trace_manifest",
        "traces.read": "TraceParams joined_columns read_trace trace_reader",
        "traces": "NEEDED",
    },
)
