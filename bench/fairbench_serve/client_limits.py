"""Limits on a client: requests in flight, and tokens and requests per minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from fairbench.live.json_errors import Problem, too_many
from fairbench_serve.charges import Bill

MINUTE_S = 60.0
TOKENS, REQUESTS = "tokens_per_min", "requests_per_min"


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one request.

    ``begun`` is set when the answer has started: the slot can then no longer be evicted.

    ``on_evicted`` is called once on eviction.
    """

    client: str
    on_evicted: Callable[[], None] = lambda: None
    begun: bool = False
    evicted: bool = False

    def begin(self) -> None:
        """Record that the client receives the start of the answer."""
        self.begun = True


class ConcurrencyLimit:
    """A limit of ``most`` requests in flight, and of ``most_each`` per client.

    If all slots are taken, a client that has fewer slots (by weight) than another client takes one
    of these. The evicted request is the youngest one without any answer yet, of the client with the
    most slots.
    """

    def __init__(self, most: int, most_each: int, weights: Mapping[str, float]) -> None:
        self._most = most
        self._most_each = most_each
        self._weights = weights
        self._taken: dict[str, dict[Slot, None]] = {}
        self._count = 0

    @contextmanager
    def take(self, client: str) -> Iterator[Slot]:
        """Take a slot until the block ends. Raises Problem (429) if there is none."""
        own = len(self._taken.get(client, ()))
        if own >= self._most_each:
            raise too_many(
                f"this client already has {self._most_each} unfinished requests, the limit "
                "per client"
            )
        if self._count >= self._most and not self._evict_for(client, own):
            raise too_many(f"the router already has {self._most} unfinished requests, its limit")
        slot = Slot(client)
        self._taken.setdefault(client, {})[slot] = None
        self._count += 1
        try:
            yield slot
        finally:
            if not slot.evicted:
                self._leave(slot)

    def _evict_for(self, client: str, own: int) -> bool:
        """Evict a request of another client for this client; return whether that succeeded."""
        wanted = (own + 1) / self._weight(client)
        by_share = sorted(
            ((len(taken) / self._weight(name), name) for name, taken in self._taken.items()),
            reverse=True,
        )
        for share, name in by_share:
            if share <= wanted:
                return False
            for slot in reversed(self._taken[name]):
                if not slot.begun:
                    self._leave(slot)
                    slot.evicted = True
                    slot.on_evicted()
                    return True
        return False

    def _leave(self, slot: Slot) -> None:
        taken = self._taken[slot.client]
        del taken[slot]
        if not taken:
            del self._taken[slot.client]
        self._count -= 1

    def _weight(self, client: str) -> float:
        return self._weights.get(client, 1.0)


def evicted() -> Problem:
    """Return the answer to an evicted request."""
    return too_many(
        "the router is full, and this client has more unfinished requests than others; try "
        "again later"
    )


class Quota(NamedTuple):
    """Tokens (prompt and output, cached or not) and requests per minute; None for no limit."""

    tokens: int | None = None
    requests: int | None = None

    def table(self) -> dict[str, int]:
        """Return the quota as a table of a keys file."""
        named = {TOKENS: self.tokens, REQUESTS: self.requests}
        return {name: most for name, most in named.items() if most is not None}


class _Bucket:
    """A bucket that holds up to a minute's quota and fills steadily; it may be overdrawn."""

    def __init__(self, now_s: float) -> None:
        self._missing = 0.0  # fraction of a full bucket, which survives changes of the quota
        self._counted_s = now_s

    def left(self, per_min: float, now_s: float) -> float:
        gained = (now_s - self._counted_s) * per_min / MINUTE_S
        self._missing, self._counted_s = max(0.0, self._missing - gained), now_s
        return per_min - self._missing

    def take(self, number: float) -> None:
        self._missing += number


class Quotas:
    """Token buckets by client with a minute's quota, on a clock ``now_s`` in seconds. Pure.

    A request is accepted while its client has a request and any token left, before and after its
    body is read. The prompt and the reserved output are then taken from the tokens, and the true
    cost replaces them at the end. In any period a client therefore gets at most a minute's quota
    more than its rate, plus the excess of its requests in progress when the tokens ran out, which
    is paid back first.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.limits: Mapping[str, Quota] = {}
        self._now_s = now_s
        self._buckets: dict[str, tuple[_Bucket, _Bucket]] = {}

    def change(self, limits: Mapping[str, Quota]) -> None:
        """Replace the quotas; clients keep their present deficits."""
        self.limits = limits
        self._buckets = {one: both for one, both in self._buckets.items() if one in limits}

    def ask(self, client: str) -> None:
        """Count one request of the client. Raises Problem (429) if it has no quota left."""
        quota, now_s = self.limits.get(client), self._now_s()
        if quota is None:
            return
        _, requests = self._buckets.setdefault(client, (_Bucket(now_s), _Bucket(now_s)))
        self._check_tokens(client)
        if quota.requests is None:
            return
        if (left := requests.left(quota.requests, now_s)) < 1:
            raise _over(f"{quota.requests} requests", (1 - left) / quota.requests)
        requests.take(1)

    @contextmanager
    def lease(self, client: str, tokens: int) -> Iterator[Bill]:
        """Reserve a request's tokens; when the block ends, charge the bill instead.

        Other requests may have used up the quota since ``ask``. Raises Problem (429) in that case.
        """
        self._check_tokens(client)
        bill = Bill()
        self._take(client, tokens)
        try:
            yield bill
        finally:
            self._take(client, bill.total.input_tokens + bill.total.output_tokens - tokens)

    def _check_tokens(self, client: str) -> None:
        quota = self.limits.get(client)
        if quota is None or quota.tokens is None or client not in self._buckets:
            return
        if (left := self._buckets[client][0].left(quota.tokens, self._now_s())) <= 0:
            raise _over(f"{quota.tokens} tokens", -left / quota.tokens)

    def _take(self, client: str, tokens: float) -> None:
        quota = self.limits.get(client)
        if quota is not None and quota.tokens is not None and client in self._buckets:
            bucket = self._buckets[client][0]
            bucket.left(quota.tokens, self._now_s())
            bucket.take(tokens)


def _over(quota: str, minutes: float) -> Problem:
    wait_s = max(1, ceil(min(minutes, 1.0) * MINUTE_S))  # a large part may be given back soon
    return too_many(f"the client has used its quota of {quota} per minute; try again later", wait_s)
