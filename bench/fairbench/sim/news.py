"""Eviction news from workers to routers, which arrives late."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S, Prompt
from fairbench.schedulers.base import Router
from fairbench.sim.clock import ARRIVE, Clock


def eviction_news(
    clock: Clock, router: Router, worker: int, delay_ps: int
) -> Callable[[Prompt, int], None]:
    """An ``on_evict`` for one worker's cache: tells the router ``delay_ps`` later."""

    def evicted(prefix: Prompt, tokens: int) -> None:
        def deliver() -> None:
            router.on_evict(prefix, tokens, worker, clock.now_ps / PS_PER_S)

        clock.at(clock.now_ps + delay_ps, ARRIVE, worker, deliver)

    return evicted
