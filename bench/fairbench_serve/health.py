"""Health: finds the workers that are up, and the workers that have requests but produce nothing.

An engine that hangs in one request may still answer health checks, in another process or thread.
Only produced tokens show that an engine decodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from fairbench.live import headers
from fairbench.live.openai_answers import whole_fault
from fairbench.live.processes.addresses import WorkerAddress
from fairbench_serve.breaker import Breakers
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.ingress import Flight
from fairbench_serve.loads import METRICS, USAGE, page_of, samples

log = logging.getLogger(__name__)

PATH = "/health"
# A request that proves that an engine decodes: every engine serves it, with any model.
PROOF_PATH = "/v1/completions"
PROOF = {"prompt": "a", "max_tokens": 1, "temperature": 0}
LOOKS = 8  # checks of every worker within the time in which it must produce tokens
# An answer in one piece is invisible before its end: it may take this many seconds per token.
SLOWEST_TOKEN_S = 0.1
LONGEST_STALLS = 5  # multiple of the usual time that is allowed
# Samples that change while an engine decodes: tokens, and the used share of its pool.
MOVING = (
    *("sglang:generation_tokens_total", "vllm:generation_tokens_total", "sglang:gen_throughput"),
    *("sglang:num_used_tokens", *USAGE),
)


@dataclass(eq=False)
class Health:
    """Takes workers out of rotation and back; calls ``on_return(worker)`` before a return.

    A stalled worker returns when it has produced a token for the router's own request, or when it
    has reported itself down, because another process returns then.
    """

    workers: Sequence[WorkerAddress]
    dispatcher: Dispatcher
    timeout_s: float
    breakers: Breakers
    on_return: Callable[[int], Awaitable[None]]
    router_id: str = ""

    def __post_init__(self) -> None:
        self._session = ClientSession(
            connector=TCPConnector(force_close=True), timeout=ClientTimeout(total=self.timeout_s)
        )
        self._itself: set[int] = set()
        self._asked: dict[int, asyncio.Task[bool]] = {}
        self._stalled: set[int] = set()

    async def begin(self, patience_s: float) -> None:
        """Ask every worker; a worker that does not answer in time is down until it does."""
        await asyncio.wait(self._ask_all(), timeout=patience_s)
        for worker in self._asked:
            self.dispatcher.leave(worker)

    async def watch(self, interval_s: float) -> None:
        """Ask every worker every ``interval_s``, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self._ask_all()

    async def check(self, worker: int) -> bool:
        """Ask one worker, update its state, and return whether it is healthy."""
        return await asyncio.shield(self.suspect(worker))

    def suspect(self, worker: int) -> asyncio.Task[bool]:
        """Start ``check`` in the background, at most once at a time per worker."""
        if worker not in self._asked:
            self._asked[worker] = asyncio.create_task(self._check(worker))
        return self._asked[worker]

    def stalled(self, worker: int) -> None:
        """Take a worker that produces nothing out of rotation, and end its requests.

        The worker may hang because of one of these requests, so none of them is sent to another
        worker.
        """
        self._stalled.add(worker)
        self.breakers.reset(worker)
        self.dispatcher.leave(worker, died=True)

    def _ask_all(self) -> list[asyncio.Task[bool]]:
        return [self.suspect(worker) for worker in self.dispatcher.flights]

    async def aclose(self) -> None:
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await self._session.close()

    async def _check(self, worker: int) -> bool:
        try:
            healthy = await self._answers(worker)
            if not healthy:
                if healthy is False:
                    self._stalled.discard(worker)
                self.breakers.reset(worker)
                self.dispatcher.leave(worker, died=healthy is False)
            elif worker in self._stalled and not await self._decodes(worker):
                healthy = False
            elif self.dispatcher.may_join(worker) and not self.breakers.is_open(worker):
                self._stalled.discard(worker)
                await self.on_return(worker)
                self.dispatcher.join(worker)
        finally:
            del self._asked[worker]
        return bool(healthy)

    async def is_this_router(self, address: WorkerAddress, patience_s: float) -> bool:
        """Return whether this router itself answers at the address, under any name."""
        try:
            async with (
                asyncio.timeout(patience_s),
                self._session.get(address.url + PATH, headers=address.authorization) as response,
            ):
                return self._is_itself(response)
        except (ClientError, OSError):
            return False

    def _is_itself(self, response: ClientResponse) -> bool:
        return response.headers.get(headers.ROUTERS) == self.router_id

    async def _decodes(self, worker: int) -> bool:
        """Return whether a worker produces a token, or refuses for a reason outside its engine."""
        address = self.workers[worker]
        try:
            async with self._session.post(
                address.url + PROOF_PATH,
                json=PROOF,
                headers=address.authorization,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                if response.ok:
                    return whole_fault(body) is None
                return response.status < HTTPStatus.INTERNAL_SERVER_ERROR
        except (ClientError, OSError):
            return False

    async def _answers(self, worker: int) -> bool | None:
        """Return whether a worker reports that it is healthy, or None after a timeout."""
        address = self.workers[worker]
        try:
            async with self._session.get(
                address.url + PATH, headers=address.authorization
            ) as response:
                if self._is_itself(response):
                    if worker not in self._itself:
                        log.warning("worker %d is this router itself: it is down", worker)
                    self._itself.add(worker)
                    return False
                return response.ok
        except TimeoutError:
            return None
        except (ClientError, OSError):
            return False


@dataclass(eq=False)
class Progress:
    """Watches the workers; calls ``on_stall`` with a worker that is silent for too long.

    A worker is silent while it has requests and no output arrives: no event with new output, no
    whole answer, and no change of the production that its ``/metrics`` reports. Time without
    requests does not count, nor does a request whose client reads too slowly. A request that its
    client gives up changes nothing. The limit is ``stall_s`` seconds. For a worker that exports no
    such metrics and has only answers in one piece, the limit is the longest time that these may
    take.
    """

    workers: Sequence[WorkerAddress]
    dispatcher: Dispatcher
    session: ClientSession
    stall_s: float
    on_stall: Callable[[int], None]

    def __post_init__(self) -> None:
        self._silent_s: defaultdict[int, float] = defaultdict(float)
        self._told: dict[int, list[str]] = {}  # as text, in which NaN equals NaN

    def heard(self, worker: int) -> None:
        """Record that output has arrived from the worker."""
        self._silent_s.pop(worker, None)

    async def watch(self) -> None:
        """Check every worker repeatedly until cancelled."""
        pause_s = self.stall_s / LOOKS
        while True:
            await asyncio.sleep(pause_s)
            busy = [one for one in self.dispatcher.up if self.dispatcher.flights.get(one)]
            await asyncio.gather(*(self._look(worker, pause_s) for worker in busy))

    def _read(self, worker: int) -> list[Flight]:
        """Return the worker's requests whose answers are read, as fast as they come."""
        return [one for one in self.dispatcher.flights.get(worker, ()) if not one.paused]

    async def _look(self, worker: int, passed_s: float) -> None:
        if not self._read(worker):
            return
        self._silent_s[worker] += passed_s
        if self._silent_s[worker] < self.stall_s / 2:
            return
        await self._ask(worker, passed_s)
        flights = self._read(worker)
        if not flights or self._silent_s[worker] < self._limit_s(worker, flights):
            return
        self.heard(worker)
        log.warning(
            "worker %d has %d requests and has produced no token for %g s; it counts as down",
            *(worker, len(flights), self.stall_s),
        )
        self.on_stall(worker)

    def _limit_s(self, worker: int, flights: Sequence[Flight]) -> float:
        begun = any(flight.first_token_s is not None for flight in flights)
        if begun or worker in self._told:
            return self.stall_s
        longest = max(flight.request.max_new_tokens for flight in flights) * SLOWEST_TOKEN_S
        return min(max(self.stall_s, longest), LONGEST_STALLS * self.stall_s)

    async def _ask(self, worker: int, patience_s: float) -> None:
        """Count a change in the worker's own report of produced tokens as progress."""
        timeout = ClientTimeout(total=patience_s)
        page = await page_of(self.session, self.workers[worker], METRICS, timeout)
        try:
            told = samples((page or b"").decode())
        except ValueError:
            return
        before = self._told.pop(worker, None)
        if told:  # before an engine's first token, its page may lack the samples that change later
            self._told[worker] = [str(value) for name, value in told if name in MOVING]
            if before is not None and before != self._told[worker]:
                self.heard(worker)
