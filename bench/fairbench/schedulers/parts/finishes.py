"""Estimates of the time at which each worker would finish a request under fair sharing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.core import OUTPUT_PRICE, CostModel
from fairbench.schedulers.load_cap import step_units
from fairbench.schedulers.parts.fleet import lowest, members
from fairbench.tenants import lineage, parent_of

# The unit of work is the mean prefill time of a token in a prompt of ``_PROMPT`` tokens.
_PROMPT = 1_024


class RequestWork:
    """The GPU time that a request adds (its work), in units of the prefill time of a token.

    The fixed time of a step does not count as work, because the whole batch shares it. Without
    ``costs``, work is measured as input + 2 x output tokens.
    """

    def __init__(self, costs: CostModel | None = None) -> None:
        units = step_units(costs)
        self._units = units
        self._costs = costs
        if costs is not None and units is not None:
            self._iteration_s = costs.prefill_s(0, 1)
            self._token_s = (costs.prefill_s(0, _PROMPT) - self._iteration_s) / _PROMPT

    def gpu_s(self, cached_tokens: int, new_tokens: int, output_tokens: float) -> float:
        """Return the work of a request in seconds of GPU time.

        Precondition: the cost model is known.
        """
        return self.work_tokens(cached_tokens, new_tokens, output_tokens) * self._token_s

    def work_tokens(self, cached_tokens: int, new_tokens: int, output_tokens: float) -> int:
        """Return the work of a request, at least 1, in units of the prefill time of a token."""
        if self._units is None or self._costs is None:
            return max(1, round(new_tokens + OUTPUT_PRICE * output_tokens))
        prefill_s = self._costs.prefill_s(cached_tokens, new_tokens) - self._iteration_s
        context = cached_tokens + new_tokens + output_tokens / 2 + self._units.request_tokens
        decode_s = output_tokens * self._units.context_token_s * context
        return max(1, round((prefill_s + decode_s) / self._token_s))


class _Sums(NamedTuple):
    """The clients' ratios of work to weight ("levels") in ascending order, with cumulative sums."""

    levels: list[float]
    work: list[int]
    weight: list[float]


class WorkerBacklog:
    """The unfinished work of each client at a worker.

    The function ``weight`` returns a client's weight.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._of_client: dict[str, int] = {}
        self._of_request: dict[int, tuple[str, int]] = {}
        # ``_sums`` is None if a client's work or weight changed after the sums were computed.
        self._sums: _Sums | None = None

    def work(self, client: str) -> int:
        return self._of_client.get(client, 0)

    def backlogged_clients(self) -> Collection[str]:
        return self._of_client.keys()

    def add_work(self, request_id: int, client: str, work: int) -> None:
        """Add the work of a new request to its client's unfinished work."""
        self._of_request[request_id] = client, work
        self._of_client[client] = self.work(client) + work
        self._sums = None

    def remove_work(self, request_id: int) -> None:
        """Remove the work of a finished request from its client's unfinished work."""
        client, work = self._of_request.pop(request_id)
        self._of_client[client] -= work
        if not self._of_client[client]:
            del self._of_client[client]
        self._sums = None

    def reweigh(self) -> None:
        """Discard the cumulative sums of work and weights after a change of weights."""
        self._sums = None

    def finish_of_more(self, client: str, work: int) -> float:
        """Return the work that the worker does, under fair sharing, until a new request ends.

        A new request is assumed to end when its client has received its backlog of work plus
        ``work``. Until the new request ends, other clients receive service in proportion to their
        weights, but no more than their backlogs. A call of ``finish_of_more`` takes O(log clients)
        time, and the first call after a change of a backlog takes O(clients log clients) time.
        """
        return self.until(client, self.work(client) + work)

    def until(self, client: str, done: float) -> float:
        """Return the total service of all clients once ``client`` has received ``done`` itself."""
        mine, weight = self.work(client), self._weight(client)
        level = done / weight
        sums = self._sums = self._sums or self._summed()
        below = bisect_right(sums.levels, level)
        done_by_then, not_done = sums.work[below], sums.weight[-1] - sums.weight[below]
        if mine / weight <= level:
            done_by_then -= mine  # ``done`` already counts the client's own service
        else:
            not_done -= weight
        return done + done_by_then + level * not_done

    def _summed(self) -> _Sums:
        weights = {client: self._weight(client) for client in self._of_client}
        rows = sorted((work / weights[c], work, weights[c]) for c, work in self._of_client.items())
        return _Sums(
            [level for level, _, _ in rows],
            list(accumulate((work for _, work, _ in rows), initial=0)),
            list(accumulate((weight for _, _, weight in rows), initial=0.0)),
        )


class TenantBacklog:
    """The unfinished work at one worker, with fair sharing at each level of a tree of tenants."""

    def __init__(
        self, weight: Callable[[str], float], lineage: Callable[[str], tuple[str, ...]] = lineage
    ) -> None:
        self._weight, self._lineage = weight, lineage
        self._below: dict[str, WorkerBacklog] = {}
        self._nodes: dict[int, tuple[str, ...]] = {}

    def _among(self, node: str) -> WorkerBacklog:
        tenant = parent_of(node)
        if tenant not in self._below:
            self._below[tenant] = WorkerBacklog(self._weight)
        return self._below[tenant]

    def add_work(self, request_id: int, client: str, work: int) -> None:
        self._nodes[request_id] = self._lineage(client)
        for node in self._lineage(client):
            self._among(node).add_work(request_id, node, work)

    def remove_work(self, request_id: int) -> None:
        for node in self._nodes.pop(request_id):
            self._among(node).remove_work(request_id)

    def reweigh(self) -> None:
        for backlog in self._below.values():
            backlog.reweigh()

    def finish_of_more(self, client: str, work: int) -> float:
        """Return the work that the worker does, under fair sharing, until a new request ends.

        The work is computed level by level, from the client up to its outermost tenant. A tenant's
        service is the total service of its children.
        """
        *tenants, leaf = self._lineage(client)
        done = self._among(leaf).finish_of_more(leaf, work)
        for tenant in reversed(tenants):
            done = self._among(tenant).until(tenant, done)
        return done


Floats = NDArray[np.float64]


Integers = NDArray[np.int64]


# ratios of service to weight; ``FinishBounds`` stores one sum of service for each ratio
LEVELS: Floats = np.concatenate(([0.0], 2.0 ** np.arange(-4, 26, 1 / 16)))


_WIDTHS: Floats = np.diff(LEVELS)


# fraction by which ``lower_bounds`` reduces its results, far larger than rounding errors of sums
ROUNDING = 1e-6


class FinishBounds:
    """Lower bounds of ``WorkerBacklog.finish_of_more`` for all workers at once.

    For each worker and each ratio in ``LEVELS``, the class stores the sum of min(backlog, ratio x
    weight) over all clients: the total service if each client receives at most ratio x weight. Each
    worker's sum is concave in the ratio, so linear interpolation gives a lower bound. The stored
    sums are whole numbers, rounded down, so repeated updates cause no rounding errors. ``set_work``
    takes O(levels) time, and ``lower_bounds`` takes O(workers) time. The stored sums take O(workers
    x levels) memory.
    """

    def __init__(self, weight: Callable[[str], float], workers: int) -> None:
        """Set the sums of workers 0 to ``workers`` - 1 to 0."""
        self.workers = workers
        self._weight = weight
        self._got = np.zeros((workers, len(LEVELS)), np.int64)
        self._numbers = np.arange(workers)
        self._of_client: dict[str, dict[int, int]] = {}
        # A client's caps on service are the ``LEVELS`` times the client's weight. ``_of_weight``
        # stores the caps by weight, and ``_caps`` by client.
        self._of_weight: dict[float, Integers] = {}
        self._caps: dict[str, Integers] = {}

    def set_work(self, worker: int, client: str, work: int) -> None:
        at = self._of_client.setdefault(client, {})
        if client not in self._caps:
            weight = self._weight(client)
            if weight not in self._of_weight:
                self._of_weight[weight] = np.floor(LEVELS * weight).astype(np.int64)
            self._caps[client] = self._of_weight[weight]
        caps, before = self._caps[client], at.pop(worker, 0)
        self._got[worker] += np.minimum(caps, work) - np.minimum(caps, before)
        if work:
            at[worker] = work
        elif not at:
            del self._of_client[client], self._caps[client]

    def lower_bounds(self, client: str, works: Floats) -> Floats:
        """Return lower bounds of ``finish_of_more`` by worker; ``works`` is the work per worker."""
        levels = works.copy()
        if at := self._of_client.get(client):
            levels[list(at)] += list(at.values())
        levels /= self._weight(client)
        place = np.searchsorted(LEVELS, levels, side="right") - 1
        np.minimum(place, len(_WIDTHS) - 1, out=place)
        low = self._got[self._numbers, place]
        high = self._got[self._numbers, place + 1]
        along = np.minimum((levels - LEVELS[place]) / _WIDTHS[place], 1.0)
        bounds: Floats = (works + low + along * (high - low)) * (1 - ROUNDING)
        return bounds


# With more than ``FEW`` workers, lower bounds select the workers whose exact finish is computed.
FEW = 16


class Costs(NamedTuple):
    """A request's work at a set of ``workers`` that cache equally many tokens of its prompt."""

    work: int
    workers: int


class Least:
    """The earliest finish of a request on any worker so far, and the workers with this finish."""

    __slots__ = ("finish", "workers")

    def __init__(self) -> None:
        self.finish, self.workers = inf, 0

    def see(self, finish: float, workers: int) -> None:
        if finish < self.finish:
            self.finish, self.workers = finish, workers
        elif finish == self.finish:
            self.workers |= workers


@dataclass(slots=True)
class Finishes:
    """The search for the workers at which a request would end first.

    Sets of workers are stored as bits. ``costs`` contains each worker exactly once. ``idle`` is the
    set of workers without unfinished work. A request ends at the same time at all idle workers
    where its work is equal. Without ``bounds``, the search for the earliest end examines every
    worker.
    """

    client: str
    costs: Sequence[Costs]
    backlogs: Mapping[int, WorkerBacklog | TenantBacklog]
    idle: int
    bounds: FinishBounds | None

    @property
    def floor(self) -> int:
        """The request's lowest work at any worker; no worker can finish the request earlier."""
        return min(work for work, _ in self.costs)

    def least(self, among: int) -> Least:
        """Return the request's earliest finish time at a worker of the non-empty set ``among``."""
        if self.bounds is not None and among.bit_count() > FEW:
            return self._of_few(among, self.bounds)
        least = Least()
        for work, workers in self.costs:
            for worker in members(workers & among):
                least.see(self.backlogs[worker].finish_of_more(self.client, work), 1 << worker)
        return least

    def _of_few(self, among: int, bounds: FinishBounds) -> Least:
        """Return the earliest finish; examine only workers whose lower bound allows it.

        Idle workers with the same work finish at the same time, so only one idle worker per amount
        of work is examined. Busy workers are examined in ascending order of the lower bounds of
        their finish times.
        """
        least = Least()
        for work, workers in self.costs:
            if alike := workers & among & self.idle:
                least.see(self.backlogs[lowest(alike)].finish_of_more(self.client, work), alike)
        works = np.full(bounds.workers, float(self.costs[-1].work))
        for work, workers in self.costs[:-1]:
            works[_mask(workers, bounds.workers)] = work
        left = bounds.lower_bounds(self.client, works)
        left[~_mask(among & ~self.idle, bounds.workers)] = inf
        while (bound := left[worker := int(left.argmin())]) <= least.finish and bound < inf:
            finish = self.backlogs[worker].finish_of_more(self.client, int(works[worker]))
            least.see(finish, 1 << worker)
            left[worker] = inf
        return least


def _mask(workers: int, number: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(workers.to_bytes((number + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=number, bitorder="little").astype(np.bool_)


class Backlogs(dict[int, WorkerBacklog | TenantBacklog]):
    """The unfinished work at each worker.

    If ``lineage`` is given, clients are leaves of a tree of tenants.
    """

    def __init__(
        self,
        workers: Iterable[int],
        weight: Callable[[str], float],
        lineage: Callable[[str], tuple[str, ...]] | None,
    ) -> None:
        self._weight = weight
        self._lineage = lineage
        # Only a large fleet has ``_bounds``; otherwise, ``_bounds`` is None.
        self._bounds: FinishBounds | None = None
        super().__init__({worker: self._empty() for worker in workers})

    def _empty(self) -> WorkerBacklog | TenantBacklog:
        if self._lineage is None:
            return WorkerBacklog(self._weight)
        return TenantBacklog(self._weight, self._lineage)

    def add_work(self, worker: int, request_id: int, client: str, work: int) -> None:
        self[worker].add_work(request_id, client, work)
        self._update_bounds(worker, client)

    def remove_work(self, worker: int, request_id: int, client: str) -> None:
        self[worker].remove_work(request_id)
        self._update_bounds(worker, client)

    def add_empty(self, worker: int) -> None:
        self[worker] = self._empty()
        self._bounds = None

    def drop_worker(self, worker: int) -> None:
        del self[worker]
        self._bounds = None

    def reweigh(self) -> None:
        self._bounds = None
        for backlog in self.values():
            backlog.reweigh()

    def bounds(self) -> FinishBounds | None:
        """Return the ``FinishBounds``, or None for a small fleet or a tree of tenants."""
        if self._bounds is None and len(self) > FEW and self._lineage is None:
            self._bounds = FinishBounds(self._weight, max(self) + 1)
            for worker, backlog in self.items():
                for client in (
                    backlog.backlogged_clients() if isinstance(backlog, WorkerBacklog) else ()
                ):
                    self._update_bounds(worker, client)
        return self._bounds

    def _update_bounds(self, worker: int, client: str) -> None:
        backlog = self[worker]
        if self._bounds is not None and isinstance(backlog, WorkerBacklog):
            self._bounds.set_work(worker, client, backlog.work(client))
