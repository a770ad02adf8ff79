"""The interface of an eviction policy, which chooses the tokens that a full replica drops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, TypeAlias

from fairbench.core import Request
from fairbench.schedulers.setup import Setup

# the time of a leaf's last use; a later use compares larger
Access: TypeAlias = tuple[int, int, int]
Rank: TypeAlias = tuple[float, Access]


class Leaf(NamedTuple):
    """A cached stretch of tokens without a cached continuation.

    ``access`` orders the last uses, ``uses`` counts the finished requests that ended in or below
    the stretch, and ``keep_s`` is the time until which the policy wanted to keep it, in seconds.
    ``awaited`` is true if the match of a waiting request's prompt ends there.
    """

    access: Access
    uses: int
    keep_s: float
    awaited: bool


class Claimant(NamedTuple):
    """A client that claims cached tokens of the pool; all numbers are tokens.

    ``held`` is the client's residency, running or cached, ``unpinned`` the part that no running
    request uses (always above 0), and ``wanted`` the memory that its requests are waiting for. A
    token that k clients claim counts 1/k for each.
    """

    client: str
    held: float
    unpinned: float
    wanted: int

    @property
    def after(self) -> float:
        """The residency of the client once it has the memory for its waiting requests."""
        return self.held + self.wanted


class EvictionPolicy(ABC):
    """The order in which cached tokens are evicted. Subclass this, one policy per file.

    A policy is a pure state machine: it reads no clock, and receives every fact from the cache. The
    cache drops the leaf of lowest ``rank``. A ``ClientEviction`` chooses a client first.
    """

    name: ClassVar[str]
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive clients, weights and the size of the pool, once, before any request.

        Raises UsageError if the parameters do not fit, such as a quota of an unknown client.
        """
        self.setup = setup

    @abstractmethod
    def rank(self, leaf: Leaf) -> Rank:
        """Return the leaf's rank, which must not fall; the lowest rank is evicted first."""

    def limit(self, client: str) -> float | None:
        """Return the limit on the client's tokens, or None for no limit.

        The cache ends the client's own claims beyond the limit even if memory is free.
        """
        return None

    def on_start(self, request: Request) -> None:
        """Handle a request that was admitted."""

    def on_finish(self, request: Request, now_s: float) -> float:
        """Handle a finished request; return the time (s) until which its tokens should stay."""
        return 0.0


class ClientEviction(EvictionPolicy):
    """A policy that takes memory first from clients that hold more than they are entitled to.

    The cache calls ``choose`` for a client and ends that client's claim on its leaf of lowest rank.
    Memory is freed when the last claim on a leaf has ended.
    """

    def rank(self, leaf: Leaf) -> Rank:
        """Return the leaf's rank among its client's leaves: the least recently used comes first."""
        return 0, leaf.access

    @abstractmethod
    def entitled(self, client: str) -> float:
        """Return the tokens that the client may hold before others lose tokens to it."""

    @abstractmethod
    def excess(self, claimant: Claimant) -> float:
        """Return the excess of a client above its entitlement; the largest excess is the victim."""

    def choose(self, claimants: Iterable[Claimant]) -> str:
        """Return the victim among the clients above their entitlement.

        If every such client has all its tokens pinned, the client nearest to its entitlement is the
        victim.
        """
        everyone = list(claimants)
        above = [one for one in everyone if one.after > self.entitled(one.client)]
        if above:
            return max(above, key=self.excess).client
        return max(everyone, key=self._filled).client

    def _filled(self, claimant: Claimant) -> float:
        return claimant.after / max(self.entitled(claimant.client), 1e-9)
