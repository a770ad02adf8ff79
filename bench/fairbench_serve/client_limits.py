"""Limits for each client: concurrent requests, and tokens and requests per minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from fairbench_load.http_server import Problem, too_many
from fairbench_serve.answers import Bill

MINUTE_S = 60.0
TOKENS, REQUESTS = "tokens_per_min", "requests_per_min"


@dataclass(slots=True, eq=False)
class Slot:
    """The slot that an unfinished request occupies in the router.

    ``begun`` is True when the answer has started; from then on, the request cannot be evicted.
    ``on_evicted`` is called once if another request takes the slot.
    """

    client: str
    on_evicted: Callable[[], None] = lambda: None
    begun: bool = False
    evicted: bool = False

    def begin(self) -> None:
        """Record that the client has received the beginning of the answer."""
        self.begun = True


class ConcurrencyLimit:
    """A limit of ``most`` concurrent requests in total, and of ``most_each`` per client.

    If all slots are taken, a client can take a slot from the client with the most slots per weight.
    The evicted request is the youngest request whose answer has not begun.
    """

    def __init__(self, most: int, most_each: int, weights: Mapping[str, float]) -> None:
        self._most = most
        self._most_each = most_each
        self._weights = weights
        self._taken: dict[str, dict[Slot, None]] = {}
        self._count = 0

    @contextmanager
    def take_slot(self, client: str) -> Iterator[Slot]:
        """Take a slot for a request while the ``with`` block runs.

        Raises Problem (HTTP status 429) if the client or the router has too many unfinished
        requests.
        """
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
                self._free_slot(slot)

    def _evict_for(self, client: str, own: int) -> bool:
        """Evict a request of another client in favour of ``client``; return False if impossible."""
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
                    self._free_slot(slot)
                    slot.evicted = True
                    slot.on_evicted()
                    return True
        return False

    def _free_slot(self, slot: Slot) -> None:
        taken = self._taken[slot.client]
        del taken[slot]
        if not taken:
            del self._taken[slot.client]
        self._count -= 1

    def _weight(self, client: str) -> float:
        return self._weights.get(client, 1.0)


def evicted() -> Problem:
    """Return the error for a request that lost its slot."""
    return too_many(
        "the router is full, and this client has more unfinished requests than others; try "
        "again later"
    )


class Quota(NamedTuple):
    """A client's limits per minute on prompt and output tokens, and on requests.

    Cached prompt tokens count toward the limit on tokens. A field with the value None sets no
    limit.
    """

    tokens: int | None = None
    requests: int | None = None

    def table(self) -> dict[str, int]:
        """Return the quota as a table in the format of a key file."""
        named = {TOKENS: self.tokens, REQUESTS: self.requests}
        return {name: most for name, most in named.items() if most is not None}


class _Bucket:
    """A token bucket that holds the quota of one minute, and whose level may fall below 0."""

    def __init__(self, now_s: float) -> None:
        # number of missing tokens; a full bucket, which holds the quota, has 0 missing tokens
        self._missing = 0.0
        self._counted_s = now_s

    def refill(self, per_min: float, now_s: float) -> float:
        """Refill the bucket up to now, and return its level."""
        gained = (now_s - self._counted_s) * per_min / MINUTE_S
        self._missing, self._counted_s = max(0.0, self._missing - gained), now_s
        return per_min - self._missing

    def take_tokens(self, number: float) -> None:
        self._missing += number


class Quotas:
    """Token buckets for the quotas of clients; a full bucket holds the quota of one minute.

    A request is accepted if the client's quota allows one request and at least one token. A
    client's quota is checked before and after the request body is read. An accepted request takes
    its prompt and reserved output from the bucket. When the request ends, its true cost replaces
    the reservation.

    In any period, a client can exceed its rate by at most one minute's quota. If a request costs
    more than its reservation, the bucket's level may fall below 0 until refills pay for the excess.
    ``now_s`` returns the time in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.limits: Mapping[str, Quota] = {}
        self._now_s = now_s
        self._buckets: dict[str, tuple[_Bucket, _Bucket]] = {}

    def replace_limits(self, limits: Mapping[str, Quota]) -> None:
        """Replace the quotas; the number of tokens missing from each bucket does not change."""
        self.limits = limits
        self._buckets = {one: both for one, both in self._buckets.items() if one in limits}

    def check_quota(self, client: str) -> None:
        """Count a request against its client's quota.

        Raises Problem (HTTP status 429) if the client has used up its quota.
        """
        quota, now_s = self.limits.get(client), self._now_s()
        if quota is None:
            return
        _, requests = self._buckets.setdefault(client, (_Bucket(now_s), _Bucket(now_s)))
        self._check_tokens(client)
        if quota.requests is None:
            return
        if (left := requests.refill(quota.requests, now_s)) < 1:
            raise _quota_used_up(f"{quota.requests} requests", (1 - left) / quota.requests)
        requests.take_tokens(1)

    @contextmanager
    def lease(self, client: str, tokens: int) -> Iterator[Bill]:
        """Reserve the tokens of a request while the ``with`` block runs.

        At the end of the ``with`` block, the actual charges replace the reservation. Raises Problem
        (HTTP status 429) if other requests have used up the quota since ``check_quota``.
        """
        self._check_tokens(client)
        bill = Bill()
        self._charge_tokens(client, tokens)
        try:
            yield bill
        finally:
            self._charge_tokens(client, bill.total.input_tokens + bill.total.output_tokens - tokens)

    def _check_tokens(self, client: str) -> None:
        quota = self.limits.get(client)
        if quota is None or quota.tokens is None or client not in self._buckets:
            return
        if (left := self._buckets[client][0].refill(quota.tokens, self._now_s())) <= 0:
            raise _quota_used_up(f"{quota.tokens} tokens", -left / quota.tokens)

    def _charge_tokens(self, client: str, tokens: float) -> None:
        quota = self.limits.get(client)
        if quota is not None and quota.tokens is not None and client in self._buckets:
            bucket = self._buckets[client][0]
            bucket.refill(quota.tokens, self._now_s())
            bucket.take_tokens(tokens)


def _quota_used_up(quota: str, minutes: float) -> Problem:
    # Retry-After is at most a minute, because a client's quota recovers sooner if requests end
    # early.
    wait_s = max(1, ceil(min(minutes, 1.0) * MINUTE_S))
    return too_many(f"the client has used its quota of {quota} per minute; try again later", wait_s)
