"""The interface of eviction policies, and policies that evict by use, client or session."""

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

# a timestamp of a leaf's last use; later uses have larger timestamps
Access: TypeAlias = tuple[int, int, int]
Rank: TypeAlias = tuple[float, Access]


class Leaf(NamedTuple):
    """A leaf of the prefix tree, after which no further token is cached.

    - ``access`` is the time at which the leaf was last used.
    - ``uses`` counts the finished requests that used the leaf's tokens.
    - ``keep_s`` is the time (s) until which ``on_finish`` asked to keep the leaf's tokens.
    - ``awaited`` is true if the cached prefix of a waiting request ends at the leaf.
    """

    access: Access
    uses: int = 0
    keep_s: float = 0.0
    awaited: bool = False


class Claimant(NamedTuple):
    """A client that holds cached tokens of the KV pool; all amounts are in tokens.

    - ``held`` is the client's running and cached tokens; a token that k clients hold counts as 1/k
      for each client.
    - ``unpinned`` is the number of the client's tokens that no running request uses, and is above
      0.
    - ``wanted`` is the memory that the client's waiting requests need.
    """

    client: str
    held: float
    unpinned: float
    wanted: int

    @property
    def after(self) -> float:
        """The tokens that the client would hold if all its waiting requests were admitted."""
        return self.held + self.wanted


class EvictionPolicy(ABC):
    """An eviction policy: the order in which cached tokens are evicted.

    To add an eviction policy, subclass this class.

    A policy is a pure state machine without a clock. The cache evicts the leaf with the lowest
    ``rank``. A ``ClientEviction`` first chooses the client that loses tokens.
    """

    name: ClassVar[str]
    Params: ClassVar[Any] = NoParams
    # If ``reads_clock`` is true, decisions depend on the time, which differs between a server's
    # ranks.
    reads_clock: ClassVar[bool] = False

    setup: Setup = Setup()

    def __init__(self, params: Any) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        """Receive the clients, their weights and the pool size; called once, before any request.

        Raises UsageError if the parameters are invalid, such as a quota of an unknown client.
        """
        self.setup = setup

    @abstractmethod
    def rank(self, leaf: Leaf) -> Rank:
        """Return the leaf's rank, which must never fall; the lowest rank is evicted first."""

    def limit(self, client: str) -> float | None:
        """Return the maximum number of tokens that the client may hold, or None for no limit.

        A client above its limit loses cached tokens even if memory is free.
        """
        return None

    def on_start(self, request: Request, now_s: float) -> None:
        """Handle the start of an admitted request."""

    def on_finish(self, request: Request, now_s: float) -> float:
        """Handle a finished request; return the time (s) up to which to keep its tokens."""
        return 0.0


class LRU(EvictionPolicy):
    """Eviction of the least recently used leaf of any client, as engines do by default."""

    name = "lru"

    def rank(self, leaf: Leaf) -> Rank:
        return 0, leaf.access


class ClientEviction(LRU):
    """A policy that first evicts tokens of clients above their entitlement.

    The client that must give up tokens loses the leaf that it used least recently. The leaf's
    memory is freed when no client holds the leaf any more.
    """

    @abstractmethod
    def entitled(self, client: str) -> float:
        """Return the number of tokens that the client may hold when memory is full."""

    @abstractmethod
    def excess(self, claimant: Claimant) -> float:
        """Return the client's rank for eviction; the client with the highest rank loses tokens."""

    def choose(self, claimants: Iterable[Claimant]) -> str:
        """Return the client (victim) that loses cached tokens.

        The victim is the client above its entitlement with the largest ``excess``. If no client
        above its entitlement has evictable tokens, the victim is the client that uses the largest
        fraction of its entitlement.
        """
        everyone = list(claimants)
        above = [one for one in everyone if one.after > self.entitled(one.client)]
        if above:
            return max(above, key=self.excess).client
        return max(everyone, key=self._filled).client

    def _filled(self, claimant: Claimant) -> float:
        return claimant.after / max(self.entitled(claimant.client), 1e-9)


class LFU(EvictionPolicy):
    """Eviction of the leaf with the fewest uses; ties go to the least recently used leaf.

    SGLang's radix cache offers LFU besides LRU.
    """

    name = "lfu"

    def rank(self, leaf: Leaf) -> Rank:
        return leaf.uses, leaf.access


class MaxMin(ClientEviction):
    """Eviction from clients above their memory share, most unpinned tokens per weight first.

    The share of client i is C w_i / W, with the capacity C, the client's weight w_i and the sum W
    of all weights. A theorem in docs/appendix/theory.md states which clients lose no cached tokens.
    """

    name = "max-min"

    shares: Mapping[str, float]

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        total = sum(map(setup.weight, setup.clients))
        of_weight = setup.pool_tokens / total
        self.shares = {client: of_weight * setup.weight(client) for client in setup.clients}

    def entitled(self, client: str) -> float:
        return self.shares[client]

    def excess(self, claimant: Claimant) -> float:
        return claimant.unpinned / self.setup.weight(claimant.client)


# the whole KV pool in percent; all quotas together are at most this percentage
ALL = 100


@dataclass(frozen=True)
class QuotaParams:
    """Parameters of quotas: ``percent`` maps clients to quotas in percent of the KV pool.

    Clients without a quota divide the rest of the pool in proportion to their weights.
    """

    percent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for client, one in self.percent.items():
            if not (isfinite(one) and 0 <= one <= ALL):
                raise ValueError(f"percent.{client} = {one:g}: must be from 0 to {ALL}")
        total = sum(self.percent.values())
        if total > ALL:
            raise ValueError(
                f"percent: the quotas add up to {total:g}%, and at most {ALL}% are allowed"
            )


class QuotaEviction(ClientEviction):
    """Static quotas: a client's cached tokens stay within its quota even if memory is free.

    A quota does not limit the memory of running requests. If running requests need memory, cached
    tokens are evicted first from the client that is furthest above its quota.
    """

    name = "quota"
    Params: TypeAlias = QuotaParams

    quotas: Mapping[str, float]

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.quotas = self._in_tokens(setup)

    def _in_tokens(self, setup: Setup) -> Mapping[str, float]:
        """Return each client's memory quota in tokens. Raises UsageError if a client is unknown."""
        given: Mapping[str, float] = self.params.percent
        for client in given:
            if client not in setup.clients:
                raise unknown_name(f"client in {self.name}.percent", client, setup.clients)
        others = {one: setup.weight(one) for one in setup.clients if one not in given}
        rest = ALL - sum(given.values())
        if others and not rest:
            raise UsageError(
                f"{self.name}.percent: the quotas leave nothing for {next(iter(others))}; give "
                "this client a quota, or lower the other quotas"
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
    """Memory quotas per client; other clients may use the unused part of a client's quota."""

    name = "quota-lending"

    def limit(self, client: str) -> float | None:
        return None


class Retention(EvictionPolicy):
    """Retention of a session's cached tokens until the session's expected next call (Continuum).

    The expected time until the next call is the mean gap between calls in sessions of the same
    client. No tokens are kept for a session that has ended, or for a request without a session. If
    memory is short, other tokens are evicted before kept tokens. Among kept tokens, those with the
    earliest expected call are evicted first. The prefix of a waiting request is evicted last.
    """

    name = "retention"
    reads_clock = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of retention.

        - ``first_s`` is the gap between calls, in seconds, that is assumed before a gap was
          observed.
        - ``most_s`` is the longest time, in seconds, for which tokens are kept.
        - ``factor`` multiplies the mean gap between calls.
        - ``newest`` is the weight of the newest gap in the moving average of gaps.
        """

        constants: ClassVar[tuple[str, ...]] = ("most_s", "newest")

        first_s: Annotated[float, Ge(0)] = 10.0
        most_s: Annotated[float, Ge(0)] = 300.0
        factor: Annotated[float, Gt(0)] = 1.5
        newest: Annotated[float, Gt(0)] = 0.2

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        # ``_ended_s`` maps each program id to the end of its last call.
        self._ended_s: dict[int, float] = {}
        # ``_gap_s`` maps each client to a moving average of the gaps between its calls.
        self._gap_s: dict[str, float] = {}

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
