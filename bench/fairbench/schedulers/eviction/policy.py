"""The interface of an eviction policy, and the two orders from which policies inherit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, TypeAlias

from fairbench.core import Request
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.setup import Setup

# the time of a leaf's last use; the value of a later use is larger
Access: TypeAlias = tuple[int, int, int]
Rank: TypeAlias = tuple[float, Access]


class Leaf(NamedTuple):
    """A cached stretch of tokens without a cached continuation.

    - ``access`` is the time of the last use.
    - ``uses`` counts the finished requests whose tokens ended in or below the stretch.
    - ``keep_s`` is the time in seconds until which the policy wanted to keep the stretch.
    - ``awaited`` is true if the match of a waiting request's prompt ends at the stretch.
    """

    access: Access
    uses: int = 0
    keep_s: float = 0.0
    awaited: bool = False


class Claimant(NamedTuple):
    """A client that claims cached tokens of the pool. All amounts are in tokens.

    - ``held`` is the client's share of the running and cached tokens.
    - ``unpinned`` is the part of ``held`` that no running request uses, and is above 0.
    - ``wanted`` is the memory for which the client's requests wait.

    A token that k clients claim counts 1/k for each client.
    """

    client: str
    held: float
    unpinned: float
    wanted: int

    @property
    def after(self) -> float:
        """The client's tokens once its waiting requests have their memory."""
        return self.held + self.wanted


class EvictionPolicy(ABC):
    """The order in which cached tokens are evicted. Subclass this class to add a policy.

    A policy is a pure state machine: it reads no clock, and receives every fact from the cache. The
    cache evicts the leaf of lowest ``rank``. A ``ClientEviction`` chooses a client first.
    """

    name: ClassVar[str]
    Params: ClassVar[Any] = NoParams
    # decisions depend on the time, and each rank has its own clock
    reads_clock: ClassVar[bool] = False

    setup: Setup = Setup()

    def __init__(self, params: Any) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        """Receive clients, weights and the size of the pool, once, before any request.

        Raises UsageError if the parameters are invalid, such as a quota of an unknown client.
        """
        self.setup = setup

    @abstractmethod
    def rank(self, leaf: Leaf) -> Rank:
        """Return the leaf's rank, which must not fall. The leaf of lowest rank is evicted first."""

    def limit(self, client: str) -> float | None:
        """Return the most tokens that the client may claim, or None for no limit.

        The cache ends the client's own claims above the limit, even if memory is free.
        """
        return None

    def on_start(self, request: Request, now_s: float) -> None:
        """Handle a request that was admitted."""

    def on_finish(self, request: Request, now_s: float) -> float:
        """Handle a finished request; return the time (s) until which its tokens should stay."""
        return 0.0


class LRU(EvictionPolicy):
    """Evicts the least recently used leaf, as engines do by default, regardless of the client."""

    name = "lru"

    def rank(self, leaf: Leaf) -> Rank:
        """Return a rank that grows with the time of the leaf's last use."""
        return 0, leaf.access


class ClientEviction(LRU):
    """A policy that takes memory first from clients that hold more than they are entitled to.

    The cache calls ``choose`` for a client, and ends this client's claim on the leaf that the
    client used least recently. The leaf's memory is freed when the last claim on the leaf has
    ended.
    """

    @abstractmethod
    def entitled(self, client: str) -> float:
        """Return the tokens that the client may hold before other clients lose tokens to it."""

    @abstractmethod
    def excess(self, claimant: Claimant) -> float:
        """Return a client's excess over its entitlement; the largest excess makes the victim."""

    def choose(self, claimants: Iterable[Claimant]) -> str:
        """Return the victim among the clients above their entitlement.

        If no claimant is above its entitlement, because running requests use all tokens of every
        client above it, the victim is the claimant that uses the largest part of its entitlement.
        """
        everyone = list(claimants)
        above = [one for one in everyone if one.after > self.entitled(one.client)]
        if above:
            return max(above, key=self.excess).client
        return max(everyone, key=self._filled).client

    def _filled(self, claimant: Claimant) -> float:
        return claimant.after / max(self.entitled(claimant.client), 1e-9)
