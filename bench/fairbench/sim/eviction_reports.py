"""Eviction reports from workers to routers, which may be late or lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fairbench.core import PS_PER_S, Prompt
from fairbench.hardware.cluster_params import ClusterParams
from fairbench.schedulers.base import Router
from fairbench.sim.clock import ARRIVE, Clock


def eviction_reports(
    clock: Clock,
    router: Router,
    worker: int,
    params: ClusterParams,
    rng: Random,
) -> Callable[[Prompt, int], None]:
    """Return an ``on_evict`` that tells the router with a delay, unless the message is lost.

    Args:
        clock: Clock of the simulation.
        router: Router to tell.
        worker: Index of the evicting worker.
        params: Parameters of the cluster, with delay and loss of reports.
        rng: Source of randomness for losses.
    """
    delay_ps = round(params.eviction_delay_s * PS_PER_S)
    loss = params.eviction_loss or 0.0

    def evicted(prefix: Prompt, tokens: int) -> None:
        if loss and rng.random() < loss:
            return

        def deliver() -> None:
            router.on_evict(prefix, tokens, worker, clock.now_ps / PS_PER_S)

        clock.at(clock.now_ps + delay_ps, ARRIVE, worker, deliver)

    return evicted
