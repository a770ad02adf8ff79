"""Views of a host for schedulers: the waiting queue, the running batch and the workers' loads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from fairbench.core import Request
from fairbench.schedulers.prefix_tree import Node


class Scan(Protocol):
    """The waiting requests in an order that was frozen when the scan was made."""

    def __iter__(self) -> Iterator[Request]: ...

    def __next__(self) -> Request: ...

    def skip(self, client: str) -> None:
        """Skip this client's requests from the current position on, at a constant cost."""

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        """Skip each client whose credit is 0 or less when the scan reaches one of its requests."""

    def unskip_all(self) -> None:
        """Offer the requests of skipped clients again, from the current position on."""


class Running(NamedTuple):
    """A request of the running batch.

    ``held_tokens`` is the request's context, including a shared prefix. ``reserved_tokens`` is the
    KV memory in tokens that admission still reserves for future outputs of the request, before any
    ratio.
    """

    request: Request
    output_tokens: int
    held_tokens: int
    reserved_tokens: int


class ClientLoad(NamedTuple):
    """The total load of a client's running requests; ``decode_steps`` counts output tokens."""

    requests: int
    held_tokens: int
    reserved_tokens: int
    decode_steps: int


class RunningView(Protocol):
    """The running batch, as it was when the pass began.

    The view lacks requests that were preempted in this pass. Only vLLM's view contains requests
    that were admitted in this pass, and such requests cannot be preempted in the same pass.
    """

    @property
    def free_tokens(self) -> int:
        """The KV memory in tokens that is free, or caches prefixes that are not in use."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Running]:
        """Iterate over the running requests in batch order."""

    def load(self, client: str) -> ClientLoad:
        """Return the running load of the client, by iterating over the whole batch."""

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        """Return whether the request would fit in this pass if ``without`` did not run.

        The engine's own memory test and load cap decide. The test counts the pass's admissions so
        far and the memory reserved for outputs. The result is False in engines that cannot preempt.
        Each call walks over the batch.
        """


class WaitingView(Protocol):
    """The interface through which a scheduler sees the waiting queue of its host.

    A request leaves the view when it is admitted. A scan made earlier keeps its frozen order, but
    never offers an admitted request. A retracted request re-enters at the tail of the queue, and a
    preempted request re-enters after the pass.
    """

    @property
    def running(self) -> RunningView:
        """The running batch of this queue's worker."""

    def __len__(self) -> int: ...

    def __contains__(self, request: object) -> bool: ...

    def clients(self) -> Collection[str]:
        """Return the clients with at least one waiting request, in a deterministic order."""

    def oldest(self, client: str) -> Request:
        """Return the client's first request in queue order. Precondition: the client waits."""

    def queue_order(self) -> Scan:
        """Return all waiting requests in queue order."""

    def match_order(self, *, refresh: bool = True) -> Scan:
        """Return all waiting requests, longest cached prefix first, in the order of SGLang's LPM.

        The sort is stable over the previous order. A request comes last if it shares its first 32
        tokens with an earlier waiting request and has at most 32 cached tokens (in-batch
        deprioritisation). With ``refresh=False`` the queue is neither matched nor sorted: the last
        order remains, with new requests at the tail. Only schedulers that declare ``cache_aware``
        may use this method.
        """

    def matched_tokens(self, request: Request) -> int:
        """Return how many prompt tokens are cached now, at most the prompt's length - 1."""


class Waiting(NamedTuple):
    """A waiting request with the result of matching its prompt against the cache.

    ``tokens`` is the length of the prompt, including the outputs of a retracted request; ``cached``
    is the number of cached tokens, less than ``tokens``. ``duplicate`` is true if the request has
    at most 32 cached tokens and shares its first 32 tokens with an earlier request.
    ``waited_tokens`` is the number of prompt tokens that the engine has computed since the request
    entered the queue, and ``entered`` is the number of the entry. ``node`` is the node of the
    prefix tree where the match ends.
    """

    request: Request
    tokens: int
    cached: int
    duplicate: bool
    waited_tokens: int
    entered: int
    node: Node


class SortableQueue(WaitingView, Protocol):
    """The waiting queue of the simulated SGLang, which a scheduler may sort."""

    def batch(self) -> Iterable[Request]:
        """Return the requests of the running batch, including those that have just finished."""

    def matches(self) -> list[Waiting]:
        """Match all waiting requests against the cache, in queue order."""


class Room(NamedTuple):
    """The most that the next pass of a worker can start, if no running request ends before it.

    ``slots`` is a number of requests, ``tokens`` the KV memory for prompts and reserved outputs,
    and ``prompt_tokens`` the number of prompt tokens that one iteration computes. ``tokens`` counts
    all cached prefixes that are not in use, including the prefix of the request that starts.
    """

    slots: int
    tokens: int
    prompt_tokens: int


class WorkerLoad(NamedTuple):
    """The unfinished load at a worker.

    ``in_flight`` requests were sent to the worker and have not finished. ``queued`` and ``running``
    are numbers of requests, or None if unknown. ``tokens`` is the KV memory of running requests in
    tokens, or the sum of prompts in flight if the worker does not report memory. ``saturated`` is
    true if requests wait and no waiting request will be admitted before a running request ends.
    ``room`` is the worker's room before its waiting requests start, or None if unknown.
    """

    in_flight: int
    tokens: int
    queued: int | None = None
    running: int | None = None
    saturated: bool | None = None
    room: Room | None = None


class Read(NamedTuple):
    """A worker's report on a prompt: its length, and how many of its tokens were cached."""

    input_tokens: int
    cached_tokens: int = 0


class FleetView(Protocol):
    """The workers as a router or a gateway sees them."""

    def workers(self) -> Collection[int]:
        """Return the available workers in ascending order."""

    def load(self, worker: int) -> WorkerLoad:
        """Return the unfinished load at the worker."""


class NothingRunning:
    """A ``RunningView`` for hosts without a batch, such as a queue before the cluster."""

    @property
    def free_tokens(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Running]:
        return iter(())

    def load(self, client: str) -> ClientLoad:
        return ClientLoad(0, 0, 0, 0)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        return False


def client_load(running: RunningView, client: str) -> ClientLoad:
    """Return ``RunningView.load`` by a walk over the batch."""
    mine = [one for one in running if one.request.client == client]
    return ClientLoad(
        len(mine),
        sum(one.held_tokens for one in mine),
        sum(one.reserved_tokens for one in mine),
        sum(one.output_tokens for one in mine),
    )
