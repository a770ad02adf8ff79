"""The common base of the classes that host a local scheduler in SGLang and in vLLM.

The local scheduler has the same class as in the simulator. The engine itself manages the queue, the
KV cache and the memory. The host class reports and counts requests' events, such as admissions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import compress, count, filterfalse
from operator import attrgetter
from typing import Any, Protocol

from fairbench.core import Prompt, Request
from fairbench.errors import RunFailed
from fairbench.schedulers.base import Setup
from fairbench.schedulers.drive import Selection
from fairbench.schedulers.views import Running, WaitingView
from fairbench_engines.memory_shares import MirroredEviction, MirroredMemory
from fairbench_engines.ranks import RankLink
from fairbench_engines.step_times import FittedCosts, StepTimes
from fairbench_load.client_metrics import FIRST_TOKEN, QUEUE_TIME, Ledger
from fairbench_load.headers import untagged
from fairbench_load.plugin_config import PluginConfig
from fairbench_load.token_pages import narrow, segments_of

Theirs = Any  # an engine's request
REQUEST, PRODUCED, CLIENT = map(attrgetter, ("request", "produced", "client"))
IS_POSITIVE = (0).__lt__
# ``RUNNING`` creates a ``Running`` from a tuple, and is faster than the constructor.
RUNNING: Callable[[Any], Running] = partial(tuple.__new__, Running)


@dataclass(slots=True, eq=False)
class Tracked:
    """The plugin's record of an engine's request, from the request's arrival to its end."""

    request: Request
    theirs: Theirs
    # tokens to prefill, which include the output of a request that vLLM has preempted
    prompt: Prompt
    produced: int = 0  # output tokens that the engine has reported so far
    admitted: bool = False  # whether the engine has ever admitted the request
    loaded: int = 0  # prefix tokens that the next step copies from host memory


def request_of(
    tag: str,
    ids: Sequence[int],
    max_new_tokens: int,
    number: int,
    now_s: float,
    priority: int = 0,
    session: str | None = None,
) -> Request:
    """Return the scheduler's view of a request; a session becomes a program of unknown length.

    ``tag`` holds the client's name, and the seconds from ``now_s`` to the request's deadlines.
    """
    client, due = untagged(tag, now_s)
    return Request(
        *(number, client, program_of(client, session), 0),
        *(segments_of(narrow(ids)), len(ids), max_new_tokens),
        arrival_s=now_s,
        deadline_s=due.end_s,
        first_token_by_s=due.first_token_s,
        token_every_s=due.token_every_s,
        priority=priority,
    )


def program_of(client: str, session: str | None) -> int:
    """Return a number that identifies a client's session, or 0 if the request has no session."""
    if session is None:
        return 0
    return 1 + int.from_bytes(blake2b(f"{client}\0{session}".encode(), digest_size=8).digest())


class EngineView(WaitingView, Protocol):
    """A waiting queue whose requests leave at admission or abort."""

    def leave(self, request: Request) -> None: ...

    def end_pass(self) -> None: ...


class EngineHome(ABC):
    """The object inside a real engine that holds and calls a scheduler of fairbench.

    ``name_of`` returns the key under which a request of the engine is recorded.
    """

    view: EngineView
    name_of: Callable[[Theirs], Hashable]

    def __init__(self, config: PluginConfig, ledger: Ledger) -> None:
        self.config = config
        self.scheduler = config.build()
        self.ledger = ledger
        self.cap = config.load_cap()
        wanted = self.scheduler.wants_costs or config.has_cap
        self.costs = FittedCosts() if wanted else None
        self.scheduler.prepare(Setup(weights=config.weights, costs=self.costs))
        self._times = None
        if self.costs is not None and self.scheduler.on_gpu_time is not None:
            self._times = StepTimes(self.scheduler, self.costs)
        self._tracked: dict[Hashable, Tracked] = {}
        self._ours: dict[Request, Tracked] = {}
        # connection to the server's other data-parallel ranks, or None
        self.ranks: RankLink | None = None
        # memory shares of clients, or None if memory shares are off
        self._shares: MirroredMemory | None = None
        # requests that ended while they waited; the scheduler may still refer to these requests
        # until the current pass ends
        self._left: list[Request] = []
        self._numbers = count()

    def share_memory(self, eviction: MirroredEviction | None) -> None:
        """Enforce memory shares at admissions if the configuration has memory shares."""
        if self.config.shares_memory and eviction is not None:
            ours = self._ours
            self._shares = MirroredMemory(
                eviction, self.config.clients, lambda request: ours[request].theirs
            )

    @property
    def idle(self) -> bool:
        return not self._tracked

    @property
    def waiting(self) -> Collection[str]:
        """The names of the clients that have waiting requests."""
        return self.view.clients()

    def look(self, now_s: float) -> None:
        """Apply the charges that other data-parallel ranks have published."""
        if self.ranks is not None:
            self.ranks.look(now_s)

    def tell(self, now_s: float) -> None:
        """Publish this rank's charges to all other data-parallel ranks."""
        if self.ranks is not None:
            self.ranks.tell(now_s, self.view.clients(), idle=self.idle)

    def _arrive(self, request: Request, now_s: float, *, again: bool = False) -> None:
        """Tell the scheduler that a request has arrived, or was retracted if ``again`` is True."""
        handle = self.scheduler.on_retract if again else self.scheduler.on_arrival
        if self.ranks is None:
            handle(request, self.view, now_s)
            return
        # Requests are retracted only during a pass, in which ``look`` must not change charges.
        if not again:
            self.ranks.look(now_s)
        with self.ranks.arriving(request.client):
            handle(request, self.view, now_s)

    def gone(self, theirs: Theirs) -> None:
        """Handle the end of a request in any state; ignore further calls for the request."""
        if (tracked := self._tracked.pop(self.name_of(theirs), None)) is None:
            return
        request = tracked.request
        if request in self.view:
            self.view.leave(request)
            self._left.append(request)
        else:
            del self._ours[request]
        self.ledger.count("finished", request.client)
        self.cap.finish(request, tracked.produced)
        self.scheduler.on_output(request, tracked.produced)
        self.scheduler.on_finish(request)

    def _select(self, now_s: float) -> Selection | None:
        """Begin an admission pass over the waiting requests that memory shares (if any) allow.

        Return None if memory shares allow no waiting request.
        """
        view: WaitingView = self.view
        if self._shares is not None:
            view = self._shares.begin(self.view, self._pending())
            if not view.clients():
                return None
        return self.scheduler.select(view, now_s)

    @abstractmethod
    def _pending(self) -> Iterable[tuple[Request, int]]:
        """Return (request, number of prompt tokens that have no memory yet) of running requests."""

    def end_pass(self) -> None:
        """Record that the engine has ended an admission pass."""
        self.view.end_pass()
        for request in self._left:
            del self._ours[request]
        self._left.clear()

    def retraction_order(self, running: Iterable[Theirs], now_s: float) -> list[Theirs]:
        """Return the running requests in retraction order, and unknown requests at the end."""
        order_victims = self.scheduler.retraction_order
        assert order_victims is not None, "only a scheduler with such an order is asked"
        wanted = order_victims(self.view.running, now_s)
        known: dict[Request, Theirs] = {}
        unknown: list[Theirs] = []
        for theirs in running:
            if (tracked := self._tracked.get(self.name_of(theirs))) is not None:
                known[tracked.request] = theirs
            else:
                unknown.append(theirs)
        if len(wanted) != len(known) or set(wanted) != set(known):
            raise RunFailed(
                f"{self.scheduler.name}: retraction_order must return every running "
                "request exactly once"
            )
        return [*(known[request] for request in wanted), *unknown]

    def _admit(self, tracked: Tracked, extend_tokens: int) -> None:
        """Record that the engine admits a request and computes ``extend_tokens`` of its prompt."""
        request, recompute = tracked.request, tracked.admitted
        tracked.admitted = True
        if self._shares is not None:
            self._shares.changed()
        self.ledger.count("admissions", request.client)
        if not recompute:
            self.ledger.waited(QUEUE_TIME, request)
        what = "recomputed_tokens" if recompute else "extend_tokens"
        self.ledger.count(what, request.client, extend_tokens)
        self.cap.enter(request)
        self.scheduler.on_admitted(request, extend_tokens, recompute)

    def _produce(self, names: Iterable[Hashable], new_tokens: Iterable[int]) -> None:
        """Charge clients for new output tokens of the named requests; ignore unknown names.

        A step may have hundreds of requests, so ``map`` and ``compress`` replace slower Python
        loops.
        """
        found = list(map(self._tracked.get, names))
        new = list(compress(new_tokens, found))
        tracked: list[Tracked] = list(filter(None, found))
        if min(new, default=1) < 1:
            has_new = list(map(IS_POSITIVE, new))
            tracked, new = list(compress(tracked, has_new)), list(compress(new, has_new))
        for one in filterfalse(PRODUCED, tracked):
            self.ledger.waited(FIRST_TOKEN, one.request)
        for one, tokens in zip(tracked, new, strict=True):
            one.produced += tokens
        requests = list(map(REQUEST, tracked))
        if (charge_tokens := self.scheduler.on_request_tokens) is not None:
            # A deque of length 0 consumes the ``map`` without a Python loop.
            deque(map(charge_tokens, requests, new), maxlen=0)
        for client, sum_tokens in _tokens_by_client(requests, new).items():
            self.ledger.count("output_tokens", client, sum_tokens)
            self.scheduler.on_tokens(client, sum_tokens)


def _tokens_by_client(requests: Iterable[Request], tokens: list[int]) -> Mapping[str, int]:
    clients = map(CLIENT, requests)
    if max(tokens, default=1) == 1:
        return Counter(clients)
    sums: dict[str, int] = {}
    for client, new in zip(clients, tokens, strict=True):
        sums[client] = sums.get(client, 0) + new
    return sums
