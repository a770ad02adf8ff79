"""Settings of routers, admission control and gateways in front of real servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.cluster import admission_profile
from fairbench.errors import UsageError
from fairbench.schedulers.gateway.registry import (
    ADMISSION,
    GATEWAY,
    UNKNOWN_COSTS,
    AdmissionParams,
    GatewayParams,
    detector_class,
    policy_class,
)
from fairbench.schedulers.load_cap import AUTO
from fairbench.schedulers.params import as_settings, make_params, own_settings
from fairbench.schedulers.peers import ROUTERS, RoutersParams

# default saturation detector, which works with any engine
SERVED_DETECTOR = "concurrency"
# settings that limit the requests at a worker, and the requests that wait in the worker's own queue
MOST_REQUESTS, HEADROOM = f"{SERVED_DETECTOR}.requests", f"{SERVED_DETECTOR}.headroom"
# settings that limit each client's load in context tokens, in requests, and in reserved memory
CLIENT_LIMITS = tuple(f"{GATEWAY}.client_{of}" for of in ("limit", "requests", "memory"))
CLIENT_RESERVE = f"{GATEWAY}.client_reserve"
# With a reserve of 0.25, a single active client of weight 1 may use 1 / 1.25 of each worker.
DEFAULT_RESERVE = 0.25
SERVED_OUTPUTS = {f"{GATEWAY}.outputs": "ahead"}
SERVED_ROUTERS = ("every_s", "ahead_tok_s", "forget_s")  # parameters of routers with peers


def served_routers(settings: Mapping[str, Any]) -> RoutersParams:
    """Return the parameters of `fairbench serve` with peers; raise UsageError if invalid."""
    for name in own_settings(ROUTERS, settings):
        if name not in SERVED_ROUTERS:
            raise UsageError(
                f"{ROUTERS}.{name}: only simulated routers support this setting; `serve "
                f"--peer` supports {', '.join(SERVED_ROUTERS)}"
            )
    return make_params(ROUTERS, RoutersParams, settings)


def served_admission(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the admission control settings of `fairbench serve`, as ``NAME.PARAM``.

    Without admission control, the result is {}. Raises UsageError for a wrong value, or if no
    timing profile of the workers is set.
    """
    if not own_settings(ADMISSION, settings):
        return {}
    params = make_params(ADMISSION, AdmissionParams, settings)
    if params.is_on:
        admission_profile(params)
    return as_settings(ADMISSION, params)


def served_gateway(policy: str, saturation: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all ``NAME.PARAM`` settings of a gateway in front of real servers.

    Raises UsageError for an unknown name, or for a value that is wrong or unsupported.
    """
    owners: dict[str, Any] = {
        policy: policy_class(policy).Params,
        saturation: detector_class(saturation).Params,
        GATEWAY: GatewayParams,
    }
    given, resolved = {**SERVED_OUTPUTS, **settings}, dict[str, Any]()
    for owner, params in owners.items():
        resolved |= as_settings(owner, make_params(owner, params, given))
    if resolved[f"{GATEWAY}.order"] == "longest-prefix":
        raise UsageError(
            "gateway.order = 'longest-prefix': serve does not support this order, "
            "because serve does not match queued requests with the workers' caches; choose "
            "from fcfs, edf"
        )
    if resolved.get(f"{GATEWAY}.client_limit") == AUTO:
        raise UsageError(UNKNOWN_COSTS)
    return resolved
