"""The gateways of measured serving runs: FIFO with a limit, deficit round robin, token bucket."""

from __future__ import annotations

import re

from fairbench.errors import DataError
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.queue import GatewayQueue, InOrder
from fairbench.schedulers.gateway.saturation import AlwaysRoom, Concurrency, Detector
from fairbench.schedulers.gateway.token_bucket import TokenBucket
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.views import FleetView
from fairbench_rivals.gateway.infergrid_drr import InfergridDRR

GATEWAY_MS = 4.0  # time added to each request; the data's authors measured 3 to 5 ms
_WHERE = "(?: at the gateway)?"  # some data files add these words to the policy's name
_LIMIT = r"(?:, ([1-9]\d*) at a time)?"
_FIFO = re.compile(f"fifo{_WHERE}{_LIMIT}", re.IGNORECASE)
# InferGrid's policy ``infergrid-drr`` is named after deficit round robin, but has no quantum and
# only counts requests.
_DRR = re.compile(f"(?:drr|deficit round robin){_WHERE}{_LIMIT}", re.IGNORECASE)
_BUCKET = re.compile(rf"token bucket{_WHERE} ([1-9]\d*)/min, burst ([1-9]\d*)", re.IGNORECASE)


def gateway_queue(policy: str, fleet: FleetView) -> GatewayQueue:
    """Return the gateway queue that a measured run names.

    Raises DataError if the name is unknown.
    """
    policy = " ".join(policy.split())
    router: Router = build_router("round-robin", {}, 1)
    router.prepare(Setup(fleet=fleet))
    if match := _FIFO.fullmatch(policy):
        return GatewayQueue(InOrder(InOrder.Params()), router, _detector(match[1], fleet))
    if match := _DRR.fullmatch(policy):
        policy_of_flows = InfergridDRR(InfergridDRR.Params())
        return GatewayQueue(policy_of_flows, router, _detector(match[1], fleet))
    if match := _BUCKET.fullmatch(policy):
        params = TokenBucket.Params(float(match[1]), float(match[2]))
        return GatewayQueue(TokenBucket(params), router, AlwaysRoom())
    raise DataError(
        f"field 'gateway' = {policy!r}: must be 'none', 'fifo', 'fifo, N at a time', 'drr', 'drr, "
        "N at a time' or 'token bucket N/min, burst N', with N at least 1"
    )


def _detector(at_a_time: str | None, fleet: FleetView) -> Detector:
    if not at_a_time:
        return AlwaysRoom()
    detector = Concurrency(Concurrency.Params(requests=int(at_a_time)))
    detector.prepare(Setup(fleet=fleet))
    return detector
