"""Waiting requests by a key, least first, without sorting requests that are never reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop
from typing import Any

from fairbench.core import Request
from fairbench.schedulers.views import WaitingView


def least_first(view: WaitingView, key: Callable[[Request], Any]) -> Iterator[Request]:
    """Yield the currently waiting requests by key; equal keys go in queue order."""
    waiting = [(key(request), at, request) for at, request in enumerate(view.queue_order())]
    heapify(waiting)
    while waiting:
        yield heappop(waiting)[2]
