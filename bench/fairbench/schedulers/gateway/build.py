"""Functions that build a gateway from the names and settings of its policy and detector."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.admission import AdmissionControl, Estimator
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.orders import ORDERS, Matched
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.gateway.queue import (
    FlowView,
    Gateway,
    GatewayQueue,
    HoldsRequests,
    OutputsAhead,
    arrival_queue,
)
from fairbench.schedulers.gateway.registry import (
    GATEWAY,
    AdmissionParams,
    GatewayParams,
    detector_class,
    policy_class,
)
from fairbench.schedulers.gateway.rerouting import Rerouting
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers import SharedCounters, Terms, shares_counters


def with_admission(
    queue: HoldsRequests | None,
    params: AdmissionParams,
    *,
    router: Router,
    setup: Setup,
    matched: Matched = lambda request: 0,
) -> AdmissionControl:
    """Return admission control for the requests of ``queue``, or of ``router`` if no queue exists.

    If the router is a ``Rerouting``, admission control can change the worker of each request.
    ``setup.costs`` and ``setup.fleet`` must be set.
    """
    assert setup.costs is not None, "an estimate needs the time that iterations take"
    assert setup.fleet is not None, "an estimate needs the loads of the workers"
    if queue is None:
        queue = arrival_queue(router)
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
    """Build a gateway that stands in front of ``router``.

    ``settings`` maps ``NAME.PARAM`` to values.

    ``setup.fleet`` is required. ``matched`` returns the number of a request's prompt tokens that
    the best worker has cached; by default, the caches are unknown. If each of several routers has a
    gateway, ``terms`` limits a client's lead in service over clients that wait at other gateways.
    Raises UsageError for an unknown name or a setting that is not allowed.
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
        if scheduler.on_gpu_time is not None:
            raise UsageError(
                f"{policy}.charge: GPU time is not supported in a gateway, which does not "
                "know the time of iterations; leave charge out"
            )
        if scheduler.sort_queue is not None:
            raise UsageError(
                f"gateway = {policy!r}: this policy sorts SGLang's own queue, which a gateway "
                f"cannot do; use --local {policy}"
            )
        if scheduler.decodes_first is not None:
            raise UsageError(
                f"gateway = {policy!r}: this scheduler chooses between prefill and decode steps, "
                f"which a gateway cannot do; use --local {policy}"
            )
        scheduler.prepare(setup)
        if isinstance(scheduler, FlowPolicy):
            scheduler.priorities = params.priority
        shared = None
        if terms is not None and shares_counters(scheduler):
            shared = SharedCounters(scheduler, terms)
        ahead = None
        if params.outputs == "ahead" and scheduler.refunds_tokens:
            ahead = OutputsAhead(scheduler)
        return GatewayQueue(scheduler, router, detector, FlowView(order), shared, ahead)

    limits = ClientLimits(params, setup) if params.limits_clients else None
    return Gateway(queue, params, limits, orders_bands=getattr(kind, "orders_bands", False))
