"""Health checks of workers, including workers that have requests but produce no tokens.

An engine that hangs may still answer health checks from another process or thread. Only produced
tokens prove that an engine works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector

from fairbench_load import headers
from fairbench_load.openai import whole_fault
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.breaker import Breakers
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import CONNECTION_ERRORS
from fairbench_serve.ingress import AttemptFailure, RequestInFlight
from fairbench_serve.worker_info import METRICS, USAGE, page_of, samples

log = logging.getLogger(__name__)

PATH = "/health"
# the API path of test requests that check whether an engine still decodes
PROOF_PATH = "/v1/completions"
PROOF = {"prompt": "a", "max_tokens": 1, "temperature": 0}
# number of checks of each worker within the stall timeout
LOOKS = 8
# longest expected time per output token of an answer without streaming, in seconds
SLOWEST_TOKEN_S = 0.1
# maximum duration of an answer without streaming, as a multiple of the stall timeout
LONGEST_STALLS = 5
# metrics that change while an engine decodes, such as token counts and the used share of KV memory
MOVING = (
    *("sglang:generation_tokens_total", "vllm:generation_tokens_total", "sglang:gen_throughput"),
    *("sglang:num_used_tokens", *USAGE),
)


@dataclass(eq=False)
class Health:
    """Health checks that mark workers as unavailable or available.

    ``on_return(worker)`` is called before a worker becomes available again. Before a stalled worker
    becomes available again, it must produce a token for the router's test request. A worker whose
    process reports a failure needs no test request, because only a new process can pass the next
    health check.
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
        """Check each worker; an unchecked worker counts as down after ``patience_s`` seconds."""
        await asyncio.wait(self._ask_all(), timeout=patience_s)
        for worker in self._asked:
            self.dispatcher.leave(worker)

    async def watch(self, interval_s: float) -> None:
        """Check each worker every ``interval_s`` seconds until this task is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self._ask_all()

    async def check(self, worker: int) -> bool:
        """Check a worker and update its state; return whether it is healthy."""
        return await asyncio.shield(self.suspect(worker))

    def suspect(self, worker: int) -> asyncio.Task[bool]:
        """Start a health check of a worker in the background, unless one is running."""
        if worker not in self._asked:
            self._asked[worker] = asyncio.create_task(self._check_worker(worker))
        return self._asked[worker]

    def stalled(self, worker: int) -> None:
        """Make a worker that produces no tokens unavailable, and end its requests.

        No request of the worker is retried, because any request may have stalled the worker.
        """
        self._stalled.add(worker)
        self.breakers.reset(worker)
        self.dispatcher.leave(worker, AttemptFailure.DIED)

    def _ask_all(self) -> list[asyncio.Task[bool]]:
        return [self.suspect(worker) for worker in self.dispatcher.flights]

    async def aclose(self) -> None:
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await self._session.close()

    async def _check_worker(self, worker: int) -> bool:
        try:
            healthy = await self._answers(worker)
            if not healthy:
                if healthy is False:
                    self._stalled.discard(worker)
                self.breakers.reset(worker)
                self.dispatcher.leave(
                    worker, AttemptFailure.HUNG if healthy is None else AttemptFailure.DIED
                )
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
        """Return whether an address belongs to this router itself, whatever its host name is."""
        try:
            async with (
                asyncio.timeout(patience_s),
                self._session.get(address.url + PATH, headers=address.authorization) as response,
            ):
                return self._is_itself(response)
        except CONNECTION_ERRORS:
            return False

    def _is_itself(self, response: ClientResponse) -> bool:
        return response.headers.get(headers.ROUTERS) == self.router_id

    async def _decodes(self, worker: int) -> bool:
        """Return whether a worker generates a token or rejects the test request (4xx status)."""
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
        except CONNECTION_ERRORS:
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
                        log.warning(
                            "worker %d is this router itself; the worker counts as down", worker
                        )
                    self._itself.add(worker)
                    return False
                return response.ok
        except TimeoutError:
            return None
        except CONNECTION_ERRORS:
            return False


@dataclass(eq=False)
class WorkerWatch:
    """A monitor of all workers that calls ``on_stall(worker)`` if a worker makes no progress.

    Progress of a worker is an event with new output, a complete answer, or a change of the token
    metrics on its page ``/metrics``. A worker counts as stalled after ``stall_s`` seconds without
    progress. Time in which a worker has no requests, or only requests of slowly reading clients, is
    not counted. A worker that neither reports token metrics nor streams an answer gets more time,
    because its tokens are not visible.
    """

    workers: Sequence[WorkerAddress]
    dispatcher: Dispatcher
    session: ClientSession
    stall_s: float
    on_stall: Callable[[int], None]

    def __post_init__(self) -> None:
        self._silent_s: defaultdict[int, float] = defaultdict(float)
        # the values of each worker's metrics as text, because two NaN floats are never equal
        self._told: dict[int, list[str]] = {}

    def heard(self, worker: int) -> None:
        """Record that output of a worker has arrived."""
        self._silent_s.pop(worker, None)

    async def watch(self) -> None:
        """Check each worker ``LOOKS`` times per stall timeout until this task is cancelled."""
        pause_s = self.stall_s / LOOKS
        while True:
            await asyncio.sleep(pause_s)
            busy = [one for one in self.dispatcher.up if self.dispatcher.flights.get(one)]
            await asyncio.gather(*(self._look(worker, pause_s) for worker in busy))

    def _flights_being_read(self, worker: int) -> list[RequestInFlight]:
        return [one for one in self.dispatcher.flights.get(worker, ()) if not one.paused]

    async def _look(self, worker: int, passed_s: float) -> None:
        if not self._flights_being_read(worker):
            return
        self._silent_s[worker] += passed_s
        if self._silent_s[worker] < self.stall_s / 2:
            return
        await self._ask_metrics(worker, passed_s)
        flights = self._flights_being_read(worker)
        if not flights:
            return
        limit_s = self.stall_s
        if worker not in self._told and all(one.first_token_s is None for one in flights):
            longest_s = max(one.request.max_new_tokens for one in flights) * SLOWEST_TOKEN_S
            limit_s = min(max(limit_s, longest_s), LONGEST_STALLS * limit_s)
        if self._silent_s[worker] < limit_s:
            return
        self.heard(worker)
        log.warning(
            "worker %d has %d requests and has produced no token for %g s; it counts as down",
            *(worker, len(flights), self.stall_s),
        )
        self.on_stall(worker)

    async def _ask_metrics(self, worker: int, patience_s: float) -> None:
        """Read the worker's token metrics, and record a change as progress."""
        timeout = ClientTimeout(total=patience_s)
        page = await page_of(self.session, self.workers[worker], METRICS, timeout)
        try:
            told = samples((page or b"").decode())
        except ValueError:
            return
        before = self._told.pop(worker, None)
        if told:  # before a worker's first token, its /metrics may lack token counts
            self._told[worker] = [str(value) for name, value in told if name in MOVING]
            if before is not None and before != self._told[worker]:
                self.heard(worker)
