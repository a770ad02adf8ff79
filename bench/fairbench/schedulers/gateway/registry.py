"""Gateways by name: policies and detectors. To add one: write its file, add its line here.

Any local scheduler is a policy too, under its own name, the user's own included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairbench.errors import unknown_name
from fairbench.named import imported, named
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.gateway.params import (
    ADMISSION,
    GATEWAY,
    AdmissionParams,
    GatewayParams,
)
from fairbench.schedulers.params import PartParams, params_of
from fairbench.schedulers.registry import local_class, locals_by_name

if TYPE_CHECKING:
    from fairbench.schedulers.gateway.saturation.detector import Detector

NO_GATEWAY = "none"
DEFAULT_DETECTOR = "utilization"  # llm-d's

_POLICIES = "fairbench.schedulers.gateway.policies"
POLICIES = {
    "fcfs": "fairbench.schedulers.local.fcfs:FCFS",
    "round-robin": f"{_POLICIES}.round_robin:RoundRobinFlows",
    "llm-d-vtc": f"{_POLICIES}.llm_d_vtc:LlmdVTC",
    "program-aware": f"{_POLICIES}.program_aware:ProgramAware",
    "kthena": f"{_POLICIES}.kthena:Kthena",
    "drr": f"{_POLICIES}.drr:DRR",
    "wfq": f"{_POLICIES}.wfq:WFQ",
    "infergrid-drr": f"{_POLICIES}.infergrid_drr:InfergridDRR",
    "token-bucket": f"{_POLICIES}.token_bucket:TokenBucket",
}

_SATURATION = "fairbench.schedulers.gateway.saturation"
DETECTORS = {
    "utilization": f"{_SATURATION}.utilization:Utilization",
    "concurrency": f"{_SATURATION}.concurrency:Concurrency",
    "none": f"{_SATURATION}.detector:AlwaysRoom",
}


def policy_names() -> list[str]:
    """Return the gateway policies first, then every other local scheduler."""
    return [*POLICIES, *(name for name in locals_by_name() if name not in POLICIES)]


def policy_class(name: str) -> type[LocalScheduler]:
    """Return the class of a policy. Raises UsageError for an unknown name."""
    if name not in POLICIES and name not in locals_by_name():
        raise unknown_name("gateway", name, [*policy_names(), NO_GATEWAY])
    if name not in POLICIES:
        return local_class(name)
    found: type[LocalScheduler] = imported(POLICIES[name])
    return found


def detector_class(name: str) -> type[Detector]:
    """Return the class of a saturation detector. Raises UsageError for an unknown name."""
    if name not in DETECTORS:
        raise unknown_name("saturation", name, DETECTORS)
    found: type[Detector] = imported(DETECTORS[name])
    return found


def gateway_params() -> PartParams:
    """Return the gateway-only ``Params`` by name: policies, detectors, the gateway."""
    found: dict[str, type] = {GATEWAY: GatewayParams, ADMISSION: AdmissionParams}
    policies, detectors = params_of(POLICIES, policy_class), params_of(DETECTORS, detector_class)
    return named(found, found.__getitem__) | policies | detectors
