"""Health: checks which workers are up, at intervals and when a connection breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from fairbench.live import headers
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.breaker import Breakers
from fairbench.live.router.dispatcher import Dispatcher

PATH = "/health"
# A request that proves that an engine decodes: every engine serves it, with any model.
PROOF_PATH = "/v1/completions"
PROOF = {"prompt": "a", "max_tokens": 1, "temperature": 0}


log = logging.getLogger(__name__)


class Health:
    """Takes workers out of rotation and back; calls ``on_return(worker)`` before a return.

    A worker that has stalled is back when it has produced a token for the router itself, or when it
    was down by its own account, since what comes back then is another process.
    """

    def __init__(
        self,
        workers: Sequence[WorkerAddress],
        dispatcher: Dispatcher,
        timeout_s: float,
        breakers: Breakers,
        on_return: Callable[[int], Awaitable[None]],
        router_id: str = "",
    ) -> None:
        # New connections for each probe: an old connection that still works proves little.
        self._session = ClientSession(
            connector=TCPConnector(force_close=True), timeout=ClientTimeout(total=timeout_s)
        )
        self._workers = workers
        self._dispatcher = dispatcher
        self._breakers = breakers
        self._on_return = on_return
        self._router_id = router_id
        self._itself: set[int] = set()
        self._asked: dict[int, asyncio.Task[bool]] = {}
        self._stalled: set[int] = set()

    async def begin(self, patience_s: float) -> None:
        """Ask every worker; a worker that does not answer in time is down until it does."""
        await asyncio.wait(self._ask_all(), timeout=patience_s)
        for worker in self._asked:
            self._dispatcher.leave(worker)

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

        As one of them may be what it hangs in, none of them is tried elsewhere.
        """
        self._stalled.add(worker)
        self._breakers.reset(worker)
        self._dispatcher.leave(worker, died=True)

    def _ask_all(self) -> list[asyncio.Task[bool]]:
        return [self.suspect(worker) for worker in self._dispatcher.flights]

    async def aclose(self) -> None:
        """Give up what is being asked."""
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
                self._breakers.reset(worker)
                self._dispatcher.leave(worker, died=healthy is False)
            elif worker in self._stalled and not await self._decodes(worker):
                healthy = False
            elif self._dispatcher.may_join(worker) and not self._breakers.is_open(worker):
                self._stalled.discard(worker)
                await self._on_return(worker)
                self._dispatcher.join(worker)
        finally:
            del self._asked[worker]
        return bool(healthy)

    async def is_this_router(self, address: WorkerAddress, patience_s: float) -> bool:
        """Return whether this router itself answers there, under any name."""
        try:
            async with (
                asyncio.timeout(patience_s),
                self._session.get(address.url + PATH, headers=address.authorization) as response,
            ):
                return self._is_itself(response)
        except (ClientError, OSError):
            return False

    def _is_itself(self, response: ClientResponse) -> bool:
        return response.headers.get(headers.ROUTERS) == self._router_id

    async def _decodes(self, worker: int) -> bool:
        """Return whether a worker produces a token, or refuses for a reason outside its engine."""
        address = self._workers[worker]
        try:
            async with self._session.post(
                address.url + PROOF_PATH,
                json=PROOF,
                headers=address.authorization,
                allow_redirects=False,
            ) as response:
                await response.read()
                return response.status < HTTPStatus.INTERNAL_SERVER_ERROR
        except (ClientError, OSError):
            return False

    async def _answers(self, worker: int) -> bool | None:
        """Return whether a worker reports that it is healthy, or None after a timeout."""
        address = self._workers[worker]
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
