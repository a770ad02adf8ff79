"""Views: what a scheduler can see of its host: queue, running batch and workers' load."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from fairbench.core import Request


class Scan(Protocol):
    """The waiting requests in one order, frozen when the scan was made; clients can be skipped."""

    def __iter__(self) -> Iterator[Request]: ...

    def __next__(self) -> Request: ...

    def skip(self, client: str) -> None:
        """Skip this client's requests from here on, at a constant cost."""

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        """Call ``skip`` at a client's turn if its credit is 0 or less, for all clients at once."""

    def unskip_all(self) -> None:
        """Offer every client again, from the current position on."""


class Running(NamedTuple):
    """A request of the running batch.

    ``held_tokens`` is its context, including a shared prefix. ``reserved_tokens`` is the memory
    that admission still reserves for it, before any ratio.
    """

    request: Request
    output_tokens: int
    held_tokens: int
    reserved_tokens: int


class ClientLoad(NamedTuple):
    """The running load of a client, summed over its ``Running``; ``decode_steps`` are outputs."""

    requests: int
    held_tokens: int
    reserved_tokens: int
    decode_steps: int


class RunningView(Protocol):
    """The running batch, as it was when the pass began.

    Requests preempted in this pass are no longer in the view. Admitted requests are in the view
    only with vLLM, whose running list has them immediately; they cannot be preempted in this pass.
    """

    @property
    def free_tokens(self) -> int:
        """The KV memory that a request could get: free, or cached but not in use."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Running]:
        """Iterate over the running requests in batch order. Costs a walk over the batch."""

    def load(self, client: str) -> ClientLoad:
        """Return the running load of the client. Costs a walk over the batch."""

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        """Return whether the request would fit in this pass if ``without`` did not run.

        The engine's own memory test and load cap decide. The test counts the pass's admissions so
        far and the memory reserved for outputs. The result is False if nothing is preempted. Walks
        over the batch.
        """


class WaitingView(Protocol):
    """The interface through which a scheduler sees the waiting queue of its host.

    A request leaves the view when it is admitted, except that a scan made earlier has its own
    frozen order (it never offers an admitted request again). Retracted requests re-enter at the
    tail of the queue, preempted ones after the pass.
    """

    @property
    def running(self) -> RunningView:
        """The batch that runs next to this queue."""

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

        The sort is stable over the previous order. Requests that share 32 tokens with an earlier
        waiting request and have at most 32 cached come last (in-batch deprioritisation). With
        ``refresh=False`` nothing is matched or sorted: the last order remains, with newcomers at
        the tail. Only schedulers that declare ``cache_aware`` may use this.
        """

    def matched_tokens(self, request: Request) -> int:
        """Return how many prompt tokens are cached now (at most the prompt's length - 1)."""


class WorkerLoad(NamedTuple):
    """The unfinished load at a worker. ``queued`` and ``running`` are None if unknown.

    ``in_flight`` requests were sent to the worker and have not finished. ``tokens`` are held by
    running requests; if the worker is not asked, they are the prompts of requests in flight.
    ``saturated``: requests wait, and none of them is admitted before a running request ends.
    """

    in_flight: int
    tokens: int
    queued: int | None = None
    running: int | None = None
    saturated: bool | None = None


class Read(NamedTuple):
    """The prompt as the worker read it: its length and its cached tokens."""

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
