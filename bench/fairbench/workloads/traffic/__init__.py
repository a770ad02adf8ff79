"""Traffic: the arrival times of programs, by kind.

To add a kind, write a class with the interface ``arrivals.TrafficKind``, and add it to ``KINDS``.
A workload file names a kind: ``arrivals = { kind = "NAME", params = { ... } }``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from fairbench.errors import UsageError, explain, unknown_name, validated
from fairbench.named import imported
from fairbench.workloads.traffic.arrivals import TrafficKind

DEFAULT = "gamma"
# Classes are stored as import paths, so that a run imports only the modules that it uses.
KINDS = {
    DEFAULT: "fairbench.workloads.traffic.arrivals:Gamma",
    "constant": "fairbench.workloads.traffic.arrival_patterns:Constant",
    "on-off": "fairbench.workloads.traffic.arrival_patterns:OnOff",
    "ramp": "fairbench.workloads.traffic.arrival_patterns:Ramp",
    "phases": "fairbench.workloads.traffic.arrival_patterns:Phases",
    "diurnal": "fairbench.workloads.traffic.arrival_patterns:Diurnal",
    "bursts": "fairbench.workloads.traffic.arrival_patterns:Bursts",
    "closed": "fairbench.workloads.traffic.arrivals:Closed",
    "trace": "fairbench.workloads.traffic.recorded:TraceTraffic",
    "replay": "fairbench.workloads.traffic.recorded:ReplayTraffic",
    "azure": "fairbench.workloads.traffic.recorded:Azure",
}


def traffic_kind(name: str, params: Mapping[str, Any]) -> TrafficKind:
    """Return the kind of traffic called ``name``, with the given parameters.

    Raises UsageError for an unknown kind or parameter, or an invalid value.
    """
    if name not in KINDS:
        raise unknown_name("kind of arrivals", name, KINDS)
    kind = imported(KINDS[name])
    known = [field.name for field in fields(kind.Params)]
    for key in params:
        if key not in known:
            raise unknown_name(f"parameter for arrivals of kind {name}", key, known)
    try:
        made: TrafficKind = kind(validated(kind.Params, dict(params)))
    except ValidationError as error:
        raise UsageError(explain(error, f"arrivals.{name}")) from None
    return made
