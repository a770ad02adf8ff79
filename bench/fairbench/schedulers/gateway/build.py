"""A gateway, built from the names of its parts and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.admission.control import AdmissionControl
from fairbench.schedulers.gateway.admission.estimate import Estimator
from fairbench.schedulers.gateway.admission.reroute import Rerouting
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.orders import ORDERS, Matched
from fairbench.schedulers.gateway.queue import (
    FlowView,
    GatewayQueue,
    HoldsRequests,
    InOrder,
    OutputsAhead,
)
from fairbench.schedulers.gateway.registry import (
    GATEWAY,
    AdmissionParams,
    GatewayParams,
    detector_class,
    policy_class,
)
from fairbench.schedulers.gateway.saturation.detector import AlwaysRoom
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers.counters import SharedCounters, shares_counters
from fairbench.schedulers.peers.params import Terms
from fairbench.schedulers.setup import Setup


def with_admission(
    queue: HoldsRequests | None,
    params: AdmissionParams,
    *,
    router: Router,
    setup: Setup,
    matched: Matched = lambda request: 0,
) -> AdmissionControl:
    """Return admission control before a queue, or before a ``router`` if there is no queue.

    A ``rerouting`` router receives the target of each request. ``setup`` has the costs and the
    fleet.
    """
    assert setup.costs is not None, "an estimate needs the time that iterations take"
    assert setup.fleet is not None, "an estimate needs the loads of the workers"
    if queue is None:
        queue = GatewayQueue(InOrder(InOrder.Params()), router, AlwaysRoom())
    estimator = Estimator(setup.costs, setup.fleet, matched, params.ahead)
    control = AdmissionControl(queue, estimator, params)
    if isinstance(router, Rerouting):
        router.choose = control.rerouted
    return control


def build_gateway(
    policy: str,
    saturation: str,
    settings: Mapping[str, Any],
    *,
    router: Router,
    setup: Setup,
    matched: Matched = lambda request: 0,
    terms: Terms | None = None,
) -> Gateway:
    """Build a gateway before ``router``. ``settings`` maps ``NAME.PARAM`` to values.

    ``setup.fleet`` is required. ``matched`` returns how much of a request's prompt is cached at
    some worker; without it, caches are unknown. ``terms`` are given if the gateway is one of
    several routers'. Raises UsageError for an unknown name or a setting that is not allowed.
    """
    kind: Any = policy_class(policy)
    params = make_params(GATEWAY, GatewayParams, settings)
    setup.check_clients("gateway.priority", params.priority)
    order = ORDERS[params.order](params.ttl_s or inf, matched)
    detecting: Any = detector_class(saturation)
    detector = detecting(make_params(saturation, detecting.Params, settings))
    detector.prepare(setup)

    def queue() -> GatewayQueue:
        scheduler = kind(make_params(policy, kind.Params, settings))
        if scheduler.times_steps:
            raise UsageError(
                f"{policy}.charge: GPU time is not supported in a gateway, which does not "
                "know the time of iterations; leave charge out"
            )
        scheduler.prepare(setup)
        shared = None
        if terms is not None and shares_counters(scheduler):
            shared = SharedCounters(scheduler, terms)
        ahead = None
        if params.outputs == "ahead" and scheduler.refunds_tokens:
            ahead = OutputsAhead(scheduler)
        return GatewayQueue(scheduler, router, detector, FlowView(order), shared, ahead)

    limits = ClientLimits(params, setup) if params.limits_clients else None
    return Gateway(queue, params, limits)
