"""Code for clients' memory shares that the plugins for SGLang and vLLM have in common.

The simulator's ``MemoryShare`` decides which waiting requests may be admitted. ``MemoryShare``
reads each client's tokens from the eviction policy's copy (mirror) of the engine's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from fairbench.core import Request
from fairbench.engine.client_cache import Claims, Residency
from fairbench.schedulers.memory_share import MemoryShare, PromptTokens, ShareView
from fairbench.schedulers.views import WaitingView
from fairbench_engines.mirrored_cache import OTHERS

Theirs = Any  # an engine's request


class Mirror(Protocol):
    """The mirror of an engine's cache, which records the clients that claim each cached token."""

    @property
    def claims(self) -> Claims[Any]: ...

    @property
    def residency(self) -> Residency: ...


class MirroredEviction(Protocol):
    """The eviction policy of an engine; ``mirror`` is replaced when the engine clears its cache."""

    @property
    def mirror(self) -> Mirror: ...

    @property
    def splits(self) -> int:
        """The number of tree nodes split so far; a split may change a prompt's memory demand."""

    def free_tokens(self) -> int:
        """Return the number of free tokens in the engine; cached tokens are not free."""

    def demand(self, theirs: Theirs) -> PromptTokens:
        """Return the memory that a waiting request would take, without changing the cache."""


class MirroredMemory:
    """The ``ClientMemory`` of an engine, and its ``MemoryShare``, which decides on admissions.

    Clients that the eviction policy does not know count as one client with a share of 0.

    Args:
        eviction: The engine's eviction policy, which must define the clients' memory shares.
        clients: The clients that the policy knows.
        theirs_of: Function that returns the engine's own object of a request.
    """

    clients: Iterable[str]

    def __init__(
        self,
        eviction: MirroredEviction,
        clients: Collection[str],
        theirs_of: Callable[[Request], Theirs],
    ) -> None:
        self._eviction, self._theirs_of = eviction, theirs_of
        self._known = frozenset(clients)
        self._share = MemoryShare(self.share, self, self.name_of)
        # memory demands of requests, and tokens by client; cached until an admission or a
        # preemption
        self._demands: dict[Request, PromptTokens] = {}
        self._held: dict[str, float] = {}
        self._unpinned: dict[str, float] = {}
        self._splits = 0

    def begin(self, waiting: WaitingView, pending: Iterable[tuple[Request, int]]) -> ShareView:
        """Begin an admission pass, and return the view for the scheduler.

        ``pending`` lists the running requests, each with the number of its prompt tokens that have
        no memory yet.
        """
        self.clients = self._eviction.mirror.residency.clients
        self.changed()
        sums = Counter[str]()
        for request, tokens in pending:
            sums[self.name_of(request.client)] += tokens
        return self._share.begin(waiting, sums)

    def changed(self) -> None:
        """Record that an admission or a preemption in this pass has changed the memory."""
        for stored in (self._demands, self._held, self._unpinned):
            stored.clear()

    def name_of(self, client: str) -> str:
        """Return the client's name, or ``OTHERS`` for a client unknown to the eviction policy."""
        return client if client in self._known else OTHERS

    def share(self, client: str) -> float:
        """Return a client's share of the KV memory, in tokens."""
        policy = self._eviction.mirror.claims.by_client
        assert policy is not None, "the configuration allows only policies with shares"
        return 0.0 if client == OTHERS else policy.entitled(client)

    @property
    def free(self) -> int:
        return self._eviction.free_tokens()

    def held(self, client: str) -> float:
        found = self._held.get(client)
        if found is None:
            found = self._held[client] = self._eviction.mirror.residency.held(client)
        return found

    def unpinned(self, client: str) -> float:
        found = self._unpinned.get(client)
        if found is None:
            found = self._unpinned[client] = self._eviction.mirror.residency.unpinned(client)
        return found

    def demand(self, request: Request) -> PromptTokens:
        if self._splits != self._eviction.splits:
            # Prompt matching may have split nodes of SGLang's prefix tree. Such a split changes
            # memory demands of other prompts.
            self._demands.clear()
            self._splits = self._eviction.splits
        found = self._demands.get(request)
        if found is None:
            found = self._demands[request] = self._eviction.demand(self._theirs_of(request))
        return found
