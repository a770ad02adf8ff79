"""Traffic: the arrival times of programs. Each file has one kind; ``source`` has the interface.

To add a kind, write its class, in a new file or in ``planned``, and add its line here. A workload
file names it: ``arrivals = { kind = "NAME", params = { ... } }``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from fairbench.errors import UsageError, explain, unknown_name, validated
from fairbench.named import imported
from fairbench.workloads.traffic.source import TrafficKind

DEFAULT = "gamma"
# Paths instead of classes, so that a run imports only the necessary modules.
KINDS = {
    DEFAULT: "fairbench.workloads.traffic.gamma:Gamma",
    "constant": "fairbench.workloads.traffic.planned:Constant",
    "on-off": "fairbench.workloads.traffic.planned:OnOff",
    "ramp": "fairbench.workloads.traffic.planned:Ramp",
    "phases": "fairbench.workloads.traffic.planned:Phases",
    "diurnal": "fairbench.workloads.traffic.planned:Diurnal",
    "bursts": "fairbench.workloads.traffic.planned:Bursts",
    "closed": "fairbench.workloads.traffic.closed:Closed",
    "trace": "fairbench.workloads.traffic.trace:Trace",
    "replay": "fairbench.workloads.traffic.replay:Replay",
    "azure": "fairbench.workloads.traffic.azure:Azure",
}


def traffic_kind(name: str, params: Mapping[str, Any]) -> TrafficKind:
    """Return a kind of traffic with its parameters.

    Raises UsageError for an unknown kind, an unknown parameter or an invalid value.
    """
    if name not in KINDS:
        raise unknown_name("kind of arrivals", name, KINDS)
    kind = imported(KINDS[name])
    known = [field.name for field in fields(kind.Params)]
    for key in params:
        if key not in known:
            raise unknown_name(f"parameter of arrivals {name}", key, known)
    try:
        made: TrafficKind = kind(validated(kind.Params, dict(params)))
    except ValidationError as error:
        raise UsageError(explain(error, f"arrivals.{name}")) from None
    return made
