"""Sending: a request on its way to a worker, once the router releases the request."""

from __future__ import annotations

import asyncio

from fairbench.core import Request
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.exchange import How, WorkerFailed
from fairbench.live.router.flight import ANYWHERE, Flight, Wish
from fairbench.live.router.problem import Problem


async def sent(dispatcher: Dispatcher, request: Request, wish: Wish = ANYWHERE) -> Flight:
    """Return the request's flight. Cancelling withdraws a request that is still queued.

    Raises Problem as the dispatcher does, and WorkerFailed if its worker leaves at that moment.
    """
    went: list[Flight | Problem] = []
    told = asyncio.Event()

    def on_sent(flight: Flight | Problem) -> None:
        went.append(flight)
        told.set()

    flight = dispatcher.dispatch(request, on_sent, wish)
    if flight is not None:
        return flight
    try:
        await told.wait()
    except asyncio.CancelledError:  # the client has left
        for one in went:
            if isinstance(one, Flight):
                dispatcher.finish(one, 0, failed=True)
        dispatcher.over(request)
        raise
    result = went[0]
    if isinstance(result, Problem):
        raise result
    if not dispatcher.is_under_way(result):  # its worker has left before we were told
        dispatcher.finish(result, 0, failed=True)
        raise WorkerFailed(result.worker, How.UNREACHED)
    return result
