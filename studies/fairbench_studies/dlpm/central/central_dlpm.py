"""DLPM with one global queue, the central design that D2LPM replaces ([DLPM] §5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from fairbench.core import Prompt, Request
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.views import ListView


class TreeDelta(NamedTuple):
    """The changes of a worker's cache since the worker's last report.

    ``inserted`` holds prompts. ``evicted`` holds prefixes, each with the number of tokens that were
    evicted from its end. Prompts that were inserted and evicted again between two reports are left
    out.
    """

    inserted: tuple[Prompt, ...]
    evicted: tuple[tuple[Prompt, int], ...]


class CentralDLPM:
    """A scheduler with one queue for all workers and a copy of every worker's prefix tree.

    Before a worker forms a batch, it reports the changes of its cache and waits while the scheduler
    calls ``update``, ``match`` and ``dispatch``. The class is not a ``Router``, because a router
    does not queue a request but assigns it to a worker on arrival.
    """

    def __init__(self, params: DLPM.Params, workers: int) -> None:
        self.scheduler = DLPM(params)
        self.queue: list[Request] = []  # queued requests in order of arrival
        self._trees = [LocationTree(LocationNode) for _ in range(workers)]

    def on_arrival(self, request: Request) -> None:
        """Add a request to the global queue."""
        self.scheduler.on_arrival(request, _Turn(self.queue, {}), request.arrival_s)
        self.queue.append(request)

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charge a client for output tokens that any worker produced for the client."""
        self.scheduler.on_tokens(client, tokens)

    def on_finish(self, request: Request) -> None:
        """Record that a dispatched request has finished."""
        self.scheduler.on_finish(request)

    def update(self, worker: int, delta: TreeDelta) -> None:
        """Update the copy of a worker's prefix tree with cache changes that the worker reported."""
        tree = self._trees[worker]
        for prefix, tokens in delta.evicted:
            tree.evict(prefix, tokens, 0)
        for prompt in delta.inserted:
            tree.insert(prompt, 0)

    def match(self, worker: int) -> dict[Request, int]:
        """Return the number of cached prompt tokens of each queued request at a worker."""
        tree = self._trees[worker]
        return {r: tree.holders(tree.find(r.prompt).node).tokens for r in self.queue}

    def dispatch(self, matched: dict[Request, int], free_tokens: int) -> list[Request]:
        """Choose the requests to send to a worker, and remove the requests from the global queue.

        A request reserves KV memory for its uncached prompt and for ``max_new_tokens``.

        Args:
            matched: The number of prompt tokens that this worker caches, by queued request.
            free_tokens: The free KV memory of the worker in tokens.
        """
        turn = _Turn(self.queue, matched)
        dispatched: list[Request] = []
        left = free_tokens

        def try_admit(request: Request) -> Tried:
            nonlocal left
            extend_tokens = request.input_tokens - turn.matched_tokens(request)
            needed = extend_tokens + request.max_new_tokens
            if needed > left:
                return Tried.NO_ROOM
            left -= needed
            turn.leave(request)
            self.queue.remove(request)
            self.scheduler.on_admitted(request, extend_tokens, recompute=False)
            dispatched.append(request)
            return Tried.ADMITTED

        drive(self.scheduler.select(turn, now_s=0.0), try_admit)
        return dispatched


class _Turn(ListView):
    """The global queue, with the number of each request's prompt tokens that one worker caches."""

    def __init__(self, queue: list[Request], matched: dict[Request, int]) -> None:
        super().__init__(list(queue), matched.__getitem__)
        self._matches = matched
        self._per_client = Counter(request.client for request in queue)

    def clients(self) -> Collection[str]:
        return self._per_client.keys()

    def leave(self, request: Request) -> None:
        super().leave(request)
        self._per_client[request.client] -= 1
        if not self._per_client[request.client]:
            del self._per_client[request.client]

    def matched_tokens(self, request: Request) -> int:
        return min(self._matches[request], request.input_tokens - 1)
