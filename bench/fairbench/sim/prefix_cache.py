"""The interface of KV caches for a waiting queue, independent of their storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar

from fairbench.core import Prompt, Request
from fairbench.schedulers.prefix_tree import Place


class CacheNode(Protocol):
    """The end of a cached prefix of ``depth`` tokens."""

    @property
    def depth(self) -> int: ...

    @property
    def parent(self) -> Self | None: ...


N = TypeVar("N", bound=CacheNode)


class Waiter(Protocol[N]):
    """A waiting request attached to the node at which its last match ended."""

    request: Request
    prompt: Prompt
    total: int
    node: N | None
    place: Place

    def touched_at(self, refresh: int) -> tuple[int, int]:
        """Return the position of the waiter in the list of the last refresh."""


class MatchCache(Protocol[N]):
    """Cached prefixes, as a queue in match order needs them.

    ``on_moved`` receives an attached waiter whose match may have changed. ``refresh_stamp`` is the
    access stamp of the last refresh.
    """

    on_moved: Callable[[Waiter[N]], None] | None
    refresh_stamp: int

    def refresh(self, waiters: Iterable[Waiter[N]]) -> None:
        """Match these waiting requests, and touch the matches of all waiting requests."""

    def detach(self, waiter: Waiter[N]) -> None:
        """Forget a waiting request."""


class PrefixCache(MatchCache[N], Protocol[N]):
    """Cached prefixes that a simulated worker matches and touches."""

    root: N

    def descend(self, node: N, prompt: Prompt, place: Place, limit: int) -> tuple[N, Place]:
        """Walk on from ``node``, which ends at ``place`` of the prompt, to depth ``limit``."""

    def match(self, prompt: Prompt, limit: int) -> tuple[N, Place]:
        """Call ``descend`` from the root."""

    def touch(self, node: N) -> None:
        """Touch the path to ``node`` for a candidate or for the head of the queue."""
