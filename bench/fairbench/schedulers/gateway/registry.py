"""Gateway policies and detectors by name, and the parameters of gateway and admission control.

To add a policy, write a module like ``drr`` and add a line to this module's table of policies. To
add a detector, write a class in ``saturation`` and add a line to ``DETECTORS``. Any local
scheduler, including a user's own, is also a policy under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from annotated_types import Ge
from pydantic import PlainValidator

from fairbench.doors import registered
from fairbench.errors import unknown_name
from fairbench.named import imported, named
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.load_cap import AUTO
from fairbench.schedulers.params import (
    NotNegative,
    NotNegativeInt,
    PartParams,
    Positive,
    make_params,
    params_of,
)
from fairbench.schedulers.registry import local_class, locals_by_name
from fairbench.tenants import Tenants

if TYPE_CHECKING:
    from fairbench.schedulers.gateway.saturation import Detector


GATEWAY = "gateway"  # first part of the setting names of ``GatewayParams``
ADMISSION = "admission"  # first part of the setting names of ``AdmissionParams``
OFF: Final = "off"
REFUSE: Final = "refuse"
DEMOTE: Final = "demote"

Ahead: TypeAlias = Literal["fair", "edf", "all"]
UNKNOWN_COSTS = (
    f"gateway.client_limit = {AUTO!r}: the time of a decode step is not known here: "
    "give a number of tokens"
)


def _checked_limit(value: Any) -> str | int | None:
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value in (AUTO, None) or tokens:
        found: str | int | None = value
        return found
    raise ValueError("must be auto or a number of tokens above 0")


ClientLimit: TypeAlias = Annotated[str | int | None, PlainValidator(_checked_limit)]


@dataclass(frozen=True)
class GatewayParams:
    """The gateway parameters that apply under every policy; a limit of 0 means no limit.

    - ``order`` is the order of the requests in each client's queue.
    - ``ttl_s`` is the time in seconds after which a queued request is refused.
    - ``band_requests`` limits the queued requests of each band (priority), and ``max_requests``
      limits the queued requests of all bands together. If the gateway is full, an arriving request
      displaces the latest request of the lowest band if this band has a lower priority. If no band
      has a lower priority than the arriving request, the gateway refuses the request.
    - ``priority`` maps clients to priorities, which override the requests' priorities; larger
      numbers go first. A band is served only if no request of a higher band can be sent.
    - ``outputs`` decides when a client is charged for output tokens under a local scheduler: at the
      ``end`` of a request (the default), or ``ahead`` for its expected output (``OutputsAhead``).
      For ``ahead``, the scheduler must support refunds.
    - ``ClientLimits`` describes ``client_limit``, ``client_requests``, ``client_memory``,
      ``client_reserve`` and ``tenants``.
    """

    order: Literal["fcfs", "edf", "longest-prefix"] = "fcfs"
    ttl_s: NotNegative = 0.0
    band_requests: NotNegativeInt = 0
    max_requests: NotNegativeInt = 0
    priority: dict[str, int] = field(default_factory=dict)
    outputs: Literal["end", "ahead"] | None = None
    client_limit: ClientLimit = None
    tenants: Tenants | None = None
    client_requests: Annotated[int, Ge(1)] | None = None
    client_reserve: NotNegative = 0.0
    client_memory: Annotated[int, Ge(1)] | None = None

    @property
    def limits_clients(self) -> bool:
        limits = self.client_limit, self.client_requests, self.client_memory
        return any(limit is not None for limit in limits)

    def __post_init__(self) -> None:
        if self.client_reserve and not self.limits_clients:
            raise ValueError(
                f"client_reserve = {self.client_reserve:g}: needs a limit per client; set "
                "gateway.client_limit, gateway.client_requests or gateway.client_memory, too"
            )
        if self.tenants is not None and not self.limits_clients:
            raise ValueError(
                f"tenants = {self.tenants!r}: has no effect without a limit per client; set "
                "gateway.client_limit, too. To group a policy's clients by tenant, leave "
                "gateway.tenants out, and set POLICY.tenants"
            )


@dataclass(frozen=True)
class AdmissionParams:
    """Parameters of admission control.

    ``policy`` decides whether a request that would miss its deadline is refused or demoted.
    ``ahead`` tells the ``Estimator`` which waiting requests are served before a new request, and
    should match the local scheduler. ``margin`` multiplies estimated latencies; a value above 1
    refuses more requests. A request that would be late at the worker chosen by the router, but in
    time elsewhere, is sent to the worker with the least lateness. From ``aging_s`` seconds after
    its arrival, a demoted request is treated like other requests. ``profile`` names the timing
    profile of real servers; a simulation uses the timing profile of its experiment.
    """

    policy: Literal["off", "refuse", "demote"] = OFF
    ahead: Ahead = "fair"
    margin: Positive = 1.0
    aging_s: Positive = 60.0
    profile: str = ""

    @property
    def is_on(self) -> bool:
        return self.policy != OFF


def admission_params(settings: Mapping[str, Any]) -> AdmissionParams:
    """Return the parameters of admission control from the settings.

    Raises UsageError if a value is wrong.
    """
    return make_params(ADMISSION, AdmissionParams, settings)


NO_GATEWAY = "none"
GATEWAY_GROUP = "fairbench.gateways"
DEFAULT_DETECTOR = "utilization"  # the default saturation detector of llm-d

_GATEWAY = "fairbench.schedulers.gateway"
POLICIES = {
    "fcfs": "fairbench.schedulers.local.fcfs:FCFS",
    "round-robin": f"{_GATEWAY}.round_robin:RoundRobinFlows",
    "drr": f"{_GATEWAY}.drr:DRR",
    "wfq": f"{_GATEWAY}.wfq:WFQ",
    "token-bucket": f"{_GATEWAY}.token_bucket:TokenBucket",
}

_SATURATION = f"{_GATEWAY}.saturation"
DETECTORS = {
    "utilization": f"{_SATURATION}:Utilization",
    "concurrency": f"{_SATURATION}:Concurrency",
    "none": f"{_SATURATION}:AlwaysRoom",
}


@cache
def policies_by_name() -> Mapping[str, str]:
    """Return the ``module:class`` of each gateway policy by name, including installed policies."""
    added = {name: point.value for name, point in registered(GATEWAY_GROUP).items()}
    return {**POLICIES, **added}


def policy_names() -> list[str]:
    """Return the names of all gateway policies; every local scheduler is also a policy."""
    policies = policies_by_name()
    return [*policies, *(name for name in locals_by_name() if name not in policies)]


def policy_class(name: str) -> type[LocalScheduler]:
    """Return the class of a gateway policy.

    Raises UsageError for an unknown gateway policy.
    """
    policies = policies_by_name()
    if name not in policies and name not in locals_by_name():
        raise unknown_name("gateway", name, [*policy_names(), NO_GATEWAY])
    if name not in policies:
        return local_class(name)
    found: type[LocalScheduler] = imported(policies[name])
    return found


def default_detector(policy: str, usual: str) -> str:
    """Return a policy's default saturation detector, or ``usual`` if the policy defines none.

    Raises UsageError for an unknown gateway policy.
    """
    own: str = getattr(policy_class(policy), "detector", "")
    return own or usual


def needs_sessions(policy: str | None) -> bool:
    """Return whether a policy uses the sessions of requests; return False for None (no policy).

    Raises UsageError for an unknown gateway policy.
    """
    return policy is not None and getattr(policy_class(policy), "needs_sessions", False)


def detector_class(name: str) -> type[Detector]:
    """Return the class of a saturation detector. Raises UsageError for an unknown name."""
    if name not in DETECTORS:
        raise unknown_name("saturation", name, DETECTORS)
    found: type[Detector] = imported(DETECTORS[name])
    return found


_OWN: Mapping[str, type] = {GATEWAY: GatewayParams, ADMISSION: AdmissionParams}
GATEWAY_PARAMS: PartParams = (
    named(_OWN, _OWN.__getitem__)
    | params_of(policies_by_name(), policy_class)
    | params_of(DETECTORS, detector_class)
)
"""The ``Params`` of policies, detectors, gateway and admission control, by name."""
