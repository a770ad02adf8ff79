"""Preble's prefix autoscaling: a prefix whose queueing time doubles also goes to another GPU."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.core import Request
from fairbench.schedulers.routing.preble_load import GpuWindow, TimeModel
from fairbench.schedulers.routing.preble_tree import PrebleNode, PrebleTree
from fairbench.schedulers.routing.preble_waits import Waits


class Sent(NamedTuple):
    """An unfinished request, and the earliest possible time of its first token."""

    end: PrebleNode
    worker: int
    soonest_s: float


class Autoscaler:
    """Watches the queueing time of each prefix at each of its GPUs ([Preble] §3.2).

    A prefix is identified by its key portion: the deepest node of a path that is longer than all
    nodes above it together ([Preble] §A). The prefix is overloaded on a GPU when the mean queueing
    time of its requests in the newer half of the window is ``factor`` times that in the older half,
    as Preble's code compares them. It must also exceed the time to compute the prefix, because
    otherwise a copy would not pay. Queueing time is the time to the first token without the
    prefill, as estimated at dispatch.
    """

    def __init__(self, factor: float, window_s: float, times: TimeModel) -> None:
        self._factor = factor
        self._window_s = window_s
        self._times = times
        self._sent: dict[int, Sent] = {}

    def sent(
        self, request: Request, worker: int, end: PrebleNode, prefill_us: int, now_s: float
    ) -> None:
        """Record the dispatch of a request whose prompt ends at ``end``."""
        self._sent[request.request_id] = Sent(end, worker, now_s + prefill_us / 10**6)

    def began(self, request: Request, worker: int, at_s: float) -> None:
        sent = self._sent.get(request.request_id)
        if sent is not None and sent.worker == worker:
            key = key_portion(sent.end)
            waits = key.waits.setdefault(worker, Waits(self._window_s))
            waits.add(at_s, max(0.0, at_s - sent.soonest_s))

    def finished(self, request: Request) -> None:
        self._sent.pop(request.request_id, None)

    def overloaded(self, key: PrebleNode, worker: int, now_s: float) -> bool:
        """Return whether queueing for the prefix on this GPU has grown too long."""
        halves = key.waits[worker].halves(now_s) if worker in key.waits else None
        if halves is None:
            return False
        older_s, newer_s = halves
        copy_s = self._times.prefill_us(key.depth) / 10**6
        return newer_s >= self._factor * older_s and newer_s > copy_s


def key_portion(end: PrebleNode) -> PrebleNode:
    """Return the key portion of the path to ``end`` ([Preble] §A).

    The key portion is the deepest node at or above ``end`` that is longer than all nodes above it
    together. The uppermost node of a path always qualifies; the root stands for itself.
    """
    node = end
    while node.parent is not None and 2 * node.length <= node.depth:
        node = node.parent
    return node


def split_subtree(key: PrebleNode, window: GpuWindow, to: int, tree: PrebleTree) -> None:
    """Send half of the load below ``key`` to the GPU ``to`` from now on.

    The load of a child is that of its requests in the window ([Preble] Alg. 2). Children of a
    single request are left alone, because no further request may come there. Requests for the
    prefix itself find both GPUs, and choose the lighter one.
    """
    shared = {c: load for c, (requests, load) in window.loads_below(key).items() if requests > 1}
    stays = goes = 0
    for child in sorted(shared, key=lambda one: -shared[one]):
        if goes < stays:
            goes += shared[child]
            tree.pin(child, to)
        else:
            stays += shared[child]
