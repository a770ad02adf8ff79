"""The interface of an eviction policy, the default LRU, and policies by use, client and session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from annotated_types import Ge, Gt

from fairbench.core import Request
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.base import Setup
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.program_states import IDLE_PROGRAMS, has_program

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


class LFU(EvictionPolicy):
    """Evicts the leaf that the fewest requests have used; ties go by least recent use.

    LFU is the other order of SGLang's radix cache.
    """

    name = "lfu"

    def rank(self, leaf: Leaf) -> Rank:
        return leaf.uses, leaf.access


class MaxMin(ClientEviction):
    """Evicts from the client above its share with most unpinned memory in relation to its weight.

    The share of client i is C w_i / W: the capacity, times the client's weight over the sum of all
    weights. docs/appendix/theory.md proves which clients lose no tokens.
    """

    name = "max-min"

    shares: Mapping[str, float]  # each client's share in tokens, set by ``prepare``

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        total = sum(map(setup.weight, setup.clients))
        of_weight = setup.pool_tokens / total
        self.shares = {client: of_weight * setup.weight(client) for client in setup.clients}

    def entitled(self, client: str) -> float:
        return self.shares[client]

    def excess(self, claimant: Claimant) -> float:
        return claimant.unpinned / self.setup.weight(claimant.client)


ALL = 100  # percent of the pool


@dataclass(frozen=True)
class QuotaParams:
    """Parameters of quotas. ``percent`` maps a client's name to its quota in percent of the pool.

    Clients without a quota of their own divide the rest of the pool by weight.
    """

    percent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for a quota outside 0 to 100%, or for a sum above 100%."""
        for client, one in self.percent.items():
            if not (isfinite(one) and 0 <= one <= ALL):
                raise ValueError(f"percent.{client} = {one:g}: must be from 0 to {ALL}")
        total = sum(self.percent.values())
        if total > ALL:
            raise ValueError(
                f"percent: the quotas add up to {total:g}%, and at most {ALL}% are allowed"
            )


class QuotaEviction(ClientEviction):
    """Keeps each client within its own static quota, even if other memory is free.

    Running requests are never limited: a client whose requests need more than its quota takes
    memory from other clients, first from the client that exceeds its quota most.
    """

    name = "quota"
    Params: TypeAlias = QuotaParams

    quotas: Mapping[str, float]  # each client's quota in tokens, set by ``prepare``

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.quotas = self._in_tokens(setup)

    def _in_tokens(self, setup: Setup) -> Mapping[str, float]:
        """Return each client's quota in tokens. Raises UsageError for an unknown client."""
        given: Mapping[str, float] = self.params.percent
        for client in given:
            if client not in setup.clients:
                raise unknown_name(f"client in {self.name}.percent", client, setup.clients)
        others = {one: setup.weight(one) for one in setup.clients if one not in given}
        rest = ALL - sum(given.values())
        if others and not rest:
            raise UsageError(
                f"{self.name}.percent: the quotas leave nothing for {next(iter(others))}; give "
                "this client a quota, or lower the others"
            )
        total = sum(others.values())
        percent = {**given, **{one: rest * of / total for one, of in others.items()}}
        return {client: setup.pool_tokens * one / ALL for client, one in percent.items()}

    def entitled(self, client: str) -> float:
        return self.quotas[client]

    def excess(self, claimant: Claimant) -> float:
        return claimant.after - self.quotas[claimant.client]

    def limit(self, client: str) -> float | None:
        return self.quotas[client]


class QuotaLending(QuotaEviction):
    """Lends unused quota, and takes memory back from the client that borrows most."""

    name = "quota-lending"

    def limit(self, client: str) -> float | None:
        return None


class Retention(EvictionPolicy):
    """Keeps a session's cache until its expected return, then evicts in order of that time.

    Source: Continuum. The expected return is the end of the session's last call plus the mean time
    that sessions of its client have taken between calls. No tokens are kept for a client whose
    calls are known to have ended, nor for a request without a session. If memory is short, kept
    tokens are evicted as well, those of the earliest expected return first. The prefix of a waiting
    request is evicted last.
    """

    name = "retention"
    reads_clock = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of retention.

        - ``first_s`` is the gap, in seconds, that is assumed before any gap was observed.
        - ``most_s`` is the longest time, in seconds, for which tokens are kept.
        - ``factor`` multiplies the mean gap.
        - ``newest`` is the weight of the newest gap in the running mean.
        """

        constants: ClassVar[tuple[str, ...]] = ("most_s", "newest")

        first_s: Annotated[float, Ge(0)] = 10.0
        most_s: Annotated[float, Ge(0)] = 300.0
        factor: Annotated[float, Gt(0)] = 1.5
        newest: Annotated[float, Gt(0)] = 0.2

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._ended_s: dict[int, float] = {}  # end of a program's last call, by number of program
        self._gap_s: dict[str, float] = {}  # running mean of the gaps between calls, by client

    def rank(self, leaf: Leaf) -> Rank:
        return inf if leaf.awaited else leaf.keep_s, leaf.access

    def on_start(self, request: Request, now_s: float) -> None:
        ended_s = self._ended_s.pop(request.program_id, None)
        if ended_s is None or (gap_s := request.arrival_s - ended_s) < 0:
            return
        mean_s = self._gap_s.get(request.client, gap_s)
        self._gap_s[request.client] = mean_s + min(self.params.newest, 1) * (gap_s - mean_s)

    def on_finish(self, request: Request, now_s: float) -> float:
        self._ended_s.pop(request.program_id, None)
        if request.calls_left == 0 or not has_program(request):
            return now_s
        self._ended_s[request.program_id] = now_s
        if len(self._ended_s) > IDLE_PROGRAMS:
            del self._ended_s[next(iter(self._ended_s))]
        gap_s = self._gap_s.get(request.client, self.params.first_s)
        kept_s: float = min(self.params.most_s, self.params.factor * gap_s)
        return now_s + kept_s
