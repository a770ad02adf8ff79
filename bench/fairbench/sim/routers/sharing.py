"""Sharing: which parts of several routers share sums, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fairbench.config import ExperimentSpec
from fairbench.errors import UsageError
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.gateway.registry import admission_params
from fairbench.schedulers.peers.params import RoutersParams
from fairbench.schedulers.peers.totals import Exchanges
from fairbench.sim.routers.gossip import Gossip, Ledger, Peer
from fairbench.sim.routers.ingresses import RouterIngresses
from fairbench.streams import stream

Front = tuple[Router, HoldsRequests | None]
"""A router, and what holds requests before it."""


def share(
    spec: ExperimentSpec, params: RoutersParams, routers: RouterIngresses, fronts: Sequence[Front]
) -> None:
    """Let the routers behind ``routers`` hear of each other.

    Raises UsageError if neither router nor gateway has anything to tell, or with admission control.

    Args:
        spec: Specification of the experiment.
        params: Parameters of the routers, with the form of sharing.
        routers: Ingresses of the routers.
        fronts: Router, and holder of its requests, of each ingress.
    """
    if admission_params(spec.settings).is_on:
        raise UsageError(
            f"routers.form = {params.form!r}: cannot be combined with admission.policy"
        )
    peers = [
        Peer(_parts(spec, params, front), ingress.soon)
        for front, ingress in zip(fronts, routers.ingresses, strict=True)
    ]
    for peer in peers:
        for part in peer.parts:
            part.join_peers()
    if params.form == "exchange":
        routers.gossip = Gossip(routers.clock, peers, params, stream(spec.seed, "gossip"))
        return
    ledger = Ledger(routers.clock, peers)
    for number, ingress in enumerate(routers.ingresses):
        ingress.before = partial(ledger.ask, number)


def _parts(spec: ExperimentSpec, params: RoutersParams, front: Front) -> list[Exchanges]:
    router, queue = front
    found: list[Exchanges] = [router] if isinstance(router, Exchanges) else []
    if isinstance(queue, Gateway) and queue.shares_counters:
        found.append(queue)
    if not found:
        before = f" or the gateway {spec.gateway}" if spec.gateway else ""
        raise UsageError(
            f"routers.form = {params.form!r}: the router {spec.router}{before} has no "
            "counters to share; choose the form independent or sticky, the router d2lpm, "
            "or the gateway vtc without tenants"
        )
    return found
