"""The two interfaces of this package: what a local scheduler and a router must do.

Both are pure state machines. They read no clock, no random source and no socket; time and facts
are passed in and decisions come out, so the very same object runs in the simulator, inside a real
SGLang server (local schedulers) and in the router process in front of real servers (routers).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any, ClassVar, Protocol

from fairbench.core import Prompt, Request, Segment, ServiceBound
from fairbench.errors import RunFailed

# A pass of admissions: the scheduler yields the request that should be tried next, the home sends
# back whether it was admitted, or closes the generator when the pass is over.
Selection = Generator[Request, bool, None]


class Scan(Protocol):
    """The waiting requests in one order, frozen when the scan was made, clients skippable."""

    def __iter__(self) -> Iterator[Request]: ...

    def __next__(self) -> Request: ...

    def skip(self, client: str) -> None:
        """Pass over this client's requests from here on (cheap, however many there are)."""
        ...

    def unskip_all(self) -> None:
        """Offer every client again, from the current position on. What was passed stays passed."""
        ...


class WaitingView(Protocol):
    """The home's waiting queue as a scheduler sees it.

    A request leaves the view the moment it is admitted, except that a scan made earlier has its
    own frozen order (it never offers an admitted request again). Retracted requests re-enter at
    the tail of the queue.
    """

    def __len__(self) -> int: ...

    def clients(self) -> Collection[str]:
        """Clients with at least one waiting request, in a deterministic order."""
        ...

    def oldest(self, client: str) -> Request:
        """The client's first request in queue order. Precondition: the client is waiting."""
        ...

    def queue_order(self) -> Scan:
        """All waiting requests in queue order."""
        ...

    def match_order(self, *, refresh: bool = True) -> Scan:
        """All waiting requests, longest cached prefix first, as SGLang's LPM sorts them.

        The sort is stable over the previous order. Requests that share 32 tokens with an earlier
        waiting request and have at most 32 cached come last (in-batch deprioritisation). With
        ``refresh=False`` nothing is matched or sorted: the last order, newcomers at the tail.
        Only for a scheduler that declares ``cache_aware``.
        """
        ...

    def matched_tokens(self, request: Request) -> int:
        """Tokens of this request's prompt that are cached now (at most its length - 1)."""
        ...


class LocalScheduler(ABC):
    """Orders one worker's waiting queue. Subclass this, one policy per file.

    The class must define ``name`` and a frozen dataclass ``Params`` (its fields are what
    ``--set name.field=value`` reaches), and take ``Params`` in its constructor.
    """

    name: ClassVar[str]
    cache_aware: ClassVar[bool] = False
    per_request_tokens: ClassVar[bool] = False  # wants on_request_tokens, which costs time
    Params: ClassVar[Any]

    @abstractmethod
    def select(self, view: WaitingView) -> Selection:
        """One admission pass. Yield candidates; stop when nothing more should be tried.

        The generator receives True if the candidate was admitted (``on_admitted`` has then run
        already) and False if there was no room for it. SGLang's own schedulers return at the
        first False.
        """

    def check_clients(self, clients: Collection[str]) -> None:
        """Told once, before the first request, who the clients of the run are.

        Raises UsageError if the parameters name a client that is not among them.
        """

    def accepts(self, request: Request, now_s: float) -> bool:
        """Whether an arriving request is taken in at all. A rate limit refuses some for good."""
        return True

    def on_arrival(self, request: Request, view: WaitingView) -> None:
        """The request is about to enter the queue; ``view`` does not hold it yet."""

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """The request was admitted and its uncached ``extend_tokens`` will all be computed.

        ``recompute`` marks the second admission of a retracted request, which has been paid for.
        """

    def on_tokens(self, client: str, tokens: int) -> None:
        """Requests of this client produced so many output tokens (calls may be merged)."""

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        """The same request by request, only for a scheduler with ``per_request_tokens``."""

    def on_retract(self, request: Request, view: WaitingView) -> None:
        """A running request lost its memory and is about to re-enter the queue."""

    def on_finish(self, request: Request) -> None:
        """The request has produced its last token, or was aborted."""

    def balances(self) -> Mapping[str, float]:
        """What is held for or against each client, for monitoring: a credit, a counter."""
        return {}

    def service_bound(self) -> ServiceBound | None:
        """Numbers of the theorem that bounds service differences on one worker, or None."""
        return None


class Router(ABC):
    """Chooses a worker for each request. Subclass this, one policy per file.

    Constructor: ``(params, workers)`` where ``workers`` is the number of workers, numbered from 0.
    """

    name: ClassVar[str]
    wants_evictions: ClassVar[bool] = False
    # The theorem by which the workers' own bounds, added up, bound the cluster; "" if none.
    cluster_theorem: ClassVar[str] = ""
    Params: ClassVar[Any]

    @abstractmethod
    def route(self, request: Request, now_s: float) -> int:
        """The worker for this request. The request is dispatched there at once."""

    def on_capacity(self, pool_tokens: int) -> None:
        """The size of every worker's KV pool, told once before the first request, if known."""

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        """The request finished (or was refused, with 0 tokens) at that worker."""

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        """The last ``evicted_tokens`` of ``prefix`` have left that worker's cache. Late news."""

    def on_worker_join(self, worker: int, now_s: float) -> None:
        """A worker with an empty cache takes (again) part from now on. RunFailed if it cannot."""
        raise RunFailed(f"router {self.name} cannot change its set of workers")

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        """The worker is gone with its cache; the home re-dispatches its requests."""
        raise RunFailed(f"router {self.name} cannot change its set of workers")
