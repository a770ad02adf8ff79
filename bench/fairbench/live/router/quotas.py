"""Quotas: a client's tokens and requests per minute, regardless of other clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from math import ceil
from typing import NamedTuple

from fairbench.live.router.charges import Bill
from fairbench.live.router.problem import Problem

MINUTE_S = 60.0
TOKENS, REQUESTS = "tokens_per_min", "requests_per_min"


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
        self._missing = 0.0  # of a full one, so that it is full whatever the quota becomes
        self._counted_s = now_s

    def left(self, per_min: float, now_s: float) -> float:
        gained = (now_s - self._counted_s) * per_min / MINUTE_S
        self._missing, self._counted_s = max(0.0, self._missing - gained), now_s
        return per_min - self._missing

    def take(self, number: float) -> None:
        self._missing += number


class Quotas:
    """Token buckets by client with a minute's quota, on a clock ``now_s`` in seconds. Pure.

    A request is taken in while its client has a request and any token left. Its prompt and the
    output that it asks for are then taken from the tokens, and at its end what it has cost is put
    in their place. So in any stretch of time a client gets a minute's quota more than its rate, and
    what it had under way when the tokens ran out, which it pays back before it is served again.
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
        tokens, requests = self._buckets.setdefault(client, (_Bucket(now_s), _Bucket(now_s)))
        if quota.tokens is not None and (left := tokens.left(quota.tokens, now_s)) <= 0:
            raise _over(f"{quota.tokens} tokens", -left / quota.tokens)
        if quota.requests is None:
            return
        if (left := requests.left(quota.requests, now_s)) < 1:
            raise _over(f"{quota.requests} requests", (1 - left) / quota.requests)
        requests.take(1)

    @contextmanager
    def lease(self, client: str, tokens: int) -> Iterator[Bill]:
        """Reserve a request's tokens; when the block ends, charge the bill instead."""
        bill = Bill()
        self._take(client, tokens)
        try:
            yield bill
        finally:
            self._take(client, bill.total.input_tokens + bill.total.output_tokens - tokens)

    def _take(self, client: str, tokens: float) -> None:
        quota = self.limits.get(client)
        if quota is not None and quota.tokens is not None and client in self._buckets:
            bucket = self._buckets[client][0]
            bucket.left(quota.tokens, self._now_s())
            bucket.take(tokens)


def _over(quota: str, minutes: float) -> Problem:
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"the client has used its quota of {quota} per minute; try again later",
        retry_after_s=max(1, ceil(min(minutes, 1.0) * MINUTE_S)),  # much may be given back soon
    )
