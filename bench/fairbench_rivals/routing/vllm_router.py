"""The prefix-aware router of vLLM's production stack."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.params import NotNegativeInt, Positive, PositiveInt
from fairbench.schedulers.routing.bases import CountingRouter, any_of, lowest


class VllmRouter(CountingRouter):
    """A router that chooses a worker with the longest matching prefix, regardless of load.

    The rules follow vllm-project/production-stack @a6c01db, vllm_router/routers/routing_logic.py,
    ``prefixaware``. The router compares a prompt with all prompts ever sent to a worker, in chunks
    of 128 characters. Without a match, the router picks a random worker. fairbench's router
    ``cache-aware`` follows the policy ``cache_aware`` of vllm-project/router. The router does not
    distinguish clients.

    fairbench keeps two known defects of vLLM's router. Load is ignored, so all requests go to a
    single worker if all clients share a prefix. The router never forgets a prefix. With
    ``min_match_tokens``, a request with a shorter match goes to the worker with the fewest requests
    per second. The option corresponds to ``prefix_min_match_length`` of vLLM's router.
    """

    name = "vllm-router"

    @dataclass(frozen=True)
    class Params:
        """Parameters: the default ``chunk_tokens`` of 32 corresponds to 128 characters.

        ``window_s`` is the window in seconds in which requests per second are counted.
        """

        constants: ClassVar[tuple[str, ...]] = ("chunk_tokens", "window_s")

        min_match_tokens: NotNegativeInt = 0
        chunk_tokens: PositiveInt = 32
        window_s: Positive = 60.0

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self._tree = LocationTree(LocationNode)
        self._sent: defaultdict[int, deque[float]] = defaultdict(deque)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        chunk = self.params.chunk_tokens
        held = self._tree.cached_tokens(found.node)
        chunks = {worker: held.get(worker, 0) // chunk for worker in self._fleet.workers}
        longest = max(chunks.values())
        if longest * chunk < self.params.min_match_tokens:
            for one in chunks:
                while (sent := self._sent[one]) and sent[0] < now_s - self.params.window_s:
                    sent.popleft()
            worker = lowest({one: len(self._sent[one]) for one in chunks})[0]
        else:
            worker = any_of([w for w, held in chunks.items() if held == longest], request)
        self._sent[worker].append(now_s)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        super().on_worker_leave(worker, now_s)
        self._tree.purge(worker)
        self._sent[worker].clear()
