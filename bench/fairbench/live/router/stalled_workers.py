"""Progress: detects workers that have requests but produce nothing, whatever they report.

An engine that hangs in one request may go on to answer health checks, which another process or
thread of it does. Only tokens show that it decodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from aiohttp import ClientError, ClientSession, ClientTimeout

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.flight import Flight
from fairbench.live.router.loads import METRICS, USAGE, samples

LOOKS = 8  # at every worker within the time in which it has to produce something
# Of an answer in one piece nothing is seen before its end: it may take so long, at this pace.
SLOWEST_TOKEN_S = 0.1
LONGEST_STALLS = 5  # times the usual time, and no longer
# What moves while an engine decodes: tokens, and the share of its pool that is in use.
MOVING = (
    *("sglang:generation_tokens_total", "vllm:generation_tokens_total", "sglang:gen_throughput"),
    *("sglang:num_used_tokens", *USAGE),
)

log = logging.getLogger(__name__)


class Progress:
    """Watches the workers; calls ``on_stall`` with a worker that is silent for too long.

    A worker is silent while it has requests and nothing comes of any: no piece of an answer with a
    status of success, and no change of what its ``/metrics`` says that it has produced. Time
    without requests does not count, and a request that its client gives up changes nothing. The
    limit is ``stall_s`` seconds. It is longer for a worker that exports no such metrics and has
    only answers in one piece: as long as the longest of these may take.
    """

    def __init__(
        self,
        workers: Sequence[WorkerAddress],
        dispatcher: Dispatcher,
        session: ClientSession,
        stall_s: float,
        on_stall: Callable[[int], None],
    ) -> None:
        self._workers = workers
        self._dispatcher = dispatcher
        self._session = session
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._silent_s: defaultdict[int, float] = defaultdict(float)
        self._told: dict[int, list[str]] = {}  # in text, in which NaN equals NaN

    def heard(self, worker: int) -> None:
        """Record that a part of an answer has arrived from the worker."""
        self._silent_s.pop(worker, None)

    async def watch(self) -> None:
        """Check every worker repeatedly until cancelled."""
        pause_s = self._stall_s / LOOKS
        while True:
            await asyncio.sleep(pause_s)
            busy = [one for one in self._dispatcher.up if self._dispatcher.flights.get(one)]
            await asyncio.gather(*(self._look(worker, pause_s) for worker in busy))

    async def _look(self, worker: int, passed_s: float) -> None:
        self._silent_s[worker] += passed_s
        if self._silent_s[worker] < self._stall_s / 2:
            return
        await self._ask(worker, passed_s)
        flights = self._dispatcher.flights.get(worker)
        if not flights or self._silent_s[worker] < self._limit_s(worker, flights):
            return
        self.heard(worker)
        log.warning(
            "worker %d has %d requests and has produced no token for %g s; it counts as down",
            *(worker, len(flights), self._stall_s),
        )
        self._on_stall(worker)

    def _limit_s(self, worker: int, flights: Sequence[Flight] | dict[Flight, None]) -> float:
        begun = any(flight.first_token_s is not None for flight in flights)
        if begun or worker in self._told:
            return self._stall_s
        longest = max(flight.request.max_new_tokens for flight in flights) * SLOWEST_TOKEN_S
        return min(max(self._stall_s, longest), LONGEST_STALLS * self._stall_s)

    async def _ask(self, worker: int, patience_s: float) -> None:
        """Count a change in the worker's own report of produced tokens as progress."""
        address = self._workers[worker]
        try:
            async with self._session.get(
                address.url + METRICS,
                headers=address.authorization,
                timeout=ClientTimeout(total=patience_s),
                allow_redirects=False,
            ) as answer:
                told = samples(await answer.text()) if answer.ok else []
        except (ClientError, OSError, ValueError):
            return
        before = self._told.pop(worker, None)
        if told:  # before an engine's first token its page may lack the samples that will move
            self._told[worker] = [str(value) for name, value in told if name in MOVING]
            if before is not None and before != self._told[worker]:
                self.heard(worker)
