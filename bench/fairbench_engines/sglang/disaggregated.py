"""Hooks for prefill and decode servers of SGLang, whose queues fairbench's scheduler orders.

A prefill server queues a request once a decode server has memory for it. A decode server reserves
memory for one request after another, in the scheduler's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairbench_engines.sglang.admission import Original
from fairbench_engines.sglang.release import Hook
from fairbench_engines.sglang.requests import Req, client_of
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_load.headers import untagged

BOOTSTRAP = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
ALLOCATION = "sglang.srt.disaggregation.decode.DecodePreallocQueue"


@dataclass(eq=False)
class Disaggregation:
    """Hooks of a prefill or decode server, which get the wrapped function as first argument.

    ``ready`` lists the requests for which a decode server can allocate KV memory.
    """

    now_s: Callable[[], float]
    home: SGLangHome = field(init=False)
    ready: list[Req] = field(default_factory=list)

    def sort(self, refresh: bool) -> list[Req]:
        """Return the requests in order of arrival, because a decode server computes no prompts."""
        return self.ready

    def match(self, req: Req) -> int:
        """Return 0 cached tokens, because a decode server computes no prompts."""
        return 0

    def by_target(self) -> dict[str, Hook]:
        """Return the hooks, keyed by the name of the wrapped function."""
        return {
            f"{BOOTSTRAP}.pop_bootstrapped": Hook(self.bootstrap),
            f"{ALLOCATION}.pop_preallocated": Hook(self.allocate),
            f"{ALLOCATION}.resume_retracted_reqs": Hook(self.resume),
        }

    def bootstrap(self, original: Original, queue: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``pop_bootstrapped`` so that clients share the transfer buffers fairly."""
        if queue.req_to_metadata_buffer_idx_allocator.available_size() < len(queue.queue):
            queue.queue = self._in_turn(queue.queue)
        return original(queue, *args, **named)

    def _in_turn(self, reqs: list[Req]) -> list[Req]:
        """Sort requests so that clients get transfer buffers in proportion to their weights."""
        weights, held = self.home.config.weights, Counter(self.home.clients())
        turn: dict[Req, float] = {}
        for req in reqs:
            client, _ = untagged(client_of(req), 0.0)
            turn[req] = held[client] / weights.get(client, 1.0)
            held[client] += 1
        return sorted(reqs, key=turn.__getitem__)

    def allocate(self, original: Original, queue: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``pop_preallocated`` to try the scheduler's candidates one by one."""
        queue._update_handshake_waiters()
        ready = {
            one.req.rid: one.req
            for one in queue.queue
            if one.waiting_for_input and not one.req.finished()
        }
        waiting = self.ready = list(ready.values())
        now_s = self.now_s()
        self.home.sweep(waiting)
        self.home.discover(waiting, now_s)
        self.home.batch.show_batch(queue.scheduler.running_batch, queue.scheduler)
        rest = {one.req.rid for one in queue.queue} - ready.keys()
        # Call ``pop_preallocated`` for requests that are not ready, so that it drops failed ones.
        allocated, failed = original(queue, rids_to_check=rest)
        held = queue.transfer_queue.queue
        before = len(held)
        for req in self.home.candidates(now_s):
            got, lost = original(queue, rids_to_check={req.rid})
            if got:
                self.home.allocated(req)
                held += got  # SGLang keeps memory free for each request in the transfer queue
            failed += lost
        self.home.end_pass()
        allocated += held[before:]
        del held[before:]
        return allocated, failed

    def resume(self, original: Original, queue: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``resume_retracted_reqs``; SGLang resumes retracted requests in its own order."""
        resumed = original(queue, *args, **named)
        for req in resumed:
            self.home.allocated(req)
        return resumed
