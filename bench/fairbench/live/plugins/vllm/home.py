"""A local scheduler's home in a vLLM engine core: its requests, and its admission passes.

The scheduler is the very object of the simulator. vLLM keeps the token budget, cache and memory,
and admits by peeking at the head of its queue: the head is what our scheduler names.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from fairbench.core import Prompt as Segments
from fairbench.core import Request
from fairbench.errors import RunFailed
from fairbench.live.fitted_costs import FittedCosts
from fairbench.live.headers import DEFAULT_CLIENT
from fairbench.live.plugins.config import PluginConfig
from fairbench.live.plugins.ledger import Ledger
from fairbench.live.plugins.vllm.kept_blocks import BlockQueue, KeptBlocks
from fairbench.live.plugins.vllm.live_queue import LiveBatch, LiveQueue, Tracked
from fairbench.live.request_tag import untagged
from fairbench.live.step_times import Decode, Prompt, StepTimes
from fairbench.schedulers.drive import Preempt, Selection, resume, start
from fairbench.schedulers.load_cap import step_units
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.token_pages import segments_of

Theirs = Any  # vLLM's request


class Home:
    """The host of a scheduler inside vLLM: it receives events and returns the next candidate."""

    def __init__(
        self, config: PluginConfig, ledger: Ledger, engine: Any, kept: KeptBlocks | None = None
    ) -> None:
        self.scheduler = config.build()
        self.ledger = ledger
        self._engine = engine
        self._tracked: dict[str, Tracked] = {}  # by vLLM's id
        self._ours: dict[Request, Tracked] = {}
        self.view = self._queue(kept)
        self.cap = config.load_cap()
        wanted = self.scheduler.wants_costs or config.has_cap
        self.costs = FittedCosts() if wanted else None
        self.scheduler.prepare(Setup(weights=config.weights, costs=self.costs))
        self._times = None
        if self.costs is not None and self.scheduler.times_steps:
            self._times = StepTimes(self.scheduler, self.costs)
        self._numbers = count()
        self._selection: Selection | None = None
        self._candidate: Tracked | None = None
        self._popped: Tracked | None = None  # from the queue, for vLLM to admit or to pass over
        self._over = False  # the scheduler names nobody else in this pass
        self.now_s = 0.0  # of the pass

    def _queue(self, kept: KeptBlocks | None) -> LiveQueue | BlockQueue:
        batch = LiveBatch(self._engine, self._tracked)
        if kept is not None:
            return BlockQueue(kept, batch, self._matched, self._theirs_of)
        aware = self.scheduler.cache_aware
        return LiveQueue(batch, self._matched, self._prompt_of, cache_aware=aware)

    def request_of(self, name: str) -> Request | None:
        """Return our request for the name of one of vLLM's, None if there is none."""
        tracked = self._tracked.get(name)
        return None if tracked is None else tracked.request

    def _theirs_of(self, request: Request) -> Theirs:
        return self._ours[request].theirs

    def _prompt_of(self, request: Request) -> Segments:
        return self._ours[request].prompt

    # Requests come and go.

    def arrived(self, theirs: Theirs, now_s: float) -> None:
        """Handle a request that vLLM has queued."""
        tracked = self._tracked.get(theirs.request_id)
        if tracked is None:
            tracked = self._track(theirs, now_s)
            self.ledger.count("arrivals", tracked.request.client)
            self.scheduler.on_arrival(tracked.request, self.view, now_s)
        else:  # a session that goes on: it has stopped running, and waits again
            self.cap.leave(tracked.request)
            self.scheduler.on_retract(tracked.request, self.view, now_s)
        self.view.take_in(tracked.request)

    def _track(self, theirs: Theirs, now_s: float) -> Tracked:
        """Start tracking a request; vLLM has no programs, hence the zeros."""
        ids = theirs.prompt_token_ids or [0] * theirs.num_prompt_tokens
        prompt = segments_of(ids)
        client, due = untagged(theirs.session_id or DEFAULT_CLIENT, now_s)
        request = Request(
            *(next(self._numbers), client, 0, 0, prompt, len(ids), theirs.max_tokens),
            arrival_s=now_s,
            first_token_by_s=due.first_token_s,
            token_every_s=due.token_every_s,
            deadline_s=due.end_s,
            priority=theirs.priority,
        )
        tracked = self._ours[request] = Tracked(request, theirs, prompt)
        self._tracked[theirs.request_id] = tracked
        return tracked

    def preempted(self, theirs: Theirs, now_s: float) -> None:
        """Handle a running request that lost its memory and waits again."""
        tracked = self._tracked[theirs.request_id]
        self.ledger.count("retractions", tracked.request.client)
        self.cap.leave(tracked.request)
        tracked.prompt = segments_of(theirs.all_token_ids)
        self.scheduler.on_retract(tracked.request, self.view, now_s)
        self.view.take_in(tracked.request, first=True)

    def retraction_order(self, running: list[Theirs]) -> list[Theirs]:
        """Return all running requests in the order of preemption; unknown ones go last."""
        wanted = self.scheduler.retraction_order(self.view.running, self.now_s)
        known = {one.request_id for one in running} & self._tracked.keys()
        if len(wanted) != len(known) or set(wanted) != {
            self._tracked[name].request for name in known
        }:
            raise RunFailed(
                f"{self.scheduler.name}: retraction_order must return every running "
                "request exactly once"
            )
        theirs = [self._ours[request].theirs for request in wanted]
        return [*theirs, *(one for one in running if one.request_id not in known)]

    def passed_over(self, theirs: Theirs) -> None:
        """Handle a request that vLLM skipped for a reason of its own."""
        self.view.take_in(self._tracked[theirs.request_id].request, first=True)

    def left(self, theirs: Theirs) -> None:
        """Handle the abort of a waiting request. A request that does not wait is ignored."""
        tracked = self._tracked.get(theirs.request_id)
        if tracked is not None and tracked.request in self.view:
            self.view.leave(tracked.request)

    def produced(self, theirs: Theirs) -> None:
        """Account a step's new tokens of a request."""
        if (tracked := self._tracked.get(theirs.request_id)) is None:
            return
        if theirs.num_output_tokens < tracked.produced:  # input streams: they are prompt now
            tracked.produced = theirs.num_output_tokens
        new, request = theirs.num_output_tokens - tracked.produced, tracked.request
        if new:
            tracked.produced += new
            self.ledger.count("output_tokens", request.client, new)
            self.scheduler.on_tokens(request.client, new)
            if self.scheduler.per_request_tokens:
                self.scheduler.on_request_tokens(request, new)

    def took(self, started_s: float, ended_s: float, parts: list[tuple[Theirs, int]]) -> None:
        """Account a step's time to these tokens of each request. Call this before its results.

        Args:
            started_s: Start of the step, in seconds.
            ended_s: End of the step, in seconds.
            parts: vLLM's requests, each with the tokens that the step computed for it.
        """
        if self._times is None:
            return
        prompts, decoding = [], []
        for theirs, tokens in parts:
            if (one := self._tracked.get(theirs.request_id)) is None:
                continue
            end = theirs.num_computed_tokens
            if tokens == 1 and one.produced:
                decoding.append(Decode(one.request, end))
            else:
                complete = end >= theirs.num_tokens
                prompts.append(Prompt(one.request, end - tokens, tokens, complete))
        self._times.step(started_s, ended_s, prompts, decoding)

    def gone(self, theirs: Theirs) -> None:
        """Handle the end of a request in any state. A second call has no effect."""
        self.left(theirs)
        if (tracked := self._tracked.pop(theirs.request_id, None)) is not None:
            del self._ours[tracked.request]
            self.ledger.count("finished", tracked.request.client)
            self.cap.finish(tracked.request, tracked.produced)
            self.scheduler.on_output(tracked.request, tracked.produced)
            self.scheduler.on_finish(tracked.request)

    @property
    def idle(self) -> bool:
        """Return whether no request waits or runs."""
        return not self._tracked

    def waiting(self) -> list[Theirs]:
        """Return vLLM's waiting requests, in order of arrival."""
        return [self._ours[request].theirs for request in self.view.queue_order()]

    def _matched(self, request: Request) -> int:
        """Return the cached tokens of what would be prefilled, by vLLM's own look-up."""
        theirs = self._ours[request].theirs
        found: int = self._engine.kv_cache_manager.get_computed_blocks(theirs)[1]
        return found

    # An admission pass.

    def head(self) -> Theirs | None:
        """Return the scheduler's next candidate, or None if the pass has no more."""
        self._settle()
        if self._candidate is None and not self._over:
            self._candidate = self._next()
            self._over = self._candidate is None
        return None if self._candidate is None else self._candidate.theirs

    def _next(self) -> Tracked | None:
        found: Request | Preempt | None
        if self._selection is None:
            if not len(self.view):
                return None
            self.cap.learn(step_units(self.costs))
            self._selection = self.scheduler.select(self.view, self.now_s)
            found = start(self._selection)
        else:
            found = resume(self._selection, True)
        while found is not None:
            # To preempt is vLLM's own affair, see ``limits``.
            if not isinstance(found, Preempt) and self.cap.has_room(found):
                return self._ours[found]
            found = resume(self._selection, False)
        return None

    def pop(self) -> Theirs:
        """Remove the head from the queue; vLLM runs it, or puts it back after the pass."""
        theirs = self.head()
        assert self._candidate is not None
        self._popped, self._candidate = self._candidate, None
        self.view.leave(self._popped.request)
        return theirs

    def _settle(self) -> None:
        """Determine the outcome of the popped request from its status."""
        popped, self._popped = self._popped, None
        if popped is None:
            return
        if popped.theirs.status.name == "RUNNING":
            self._admitted(popped)
        elif self._selection is not None:  # passed over, and so the scheduler begins again
            self._selection.close()
            self._selection = None

    def _admitted(self, tracked: Tracked) -> None:
        request, theirs, recompute = tracked.request, tracked.theirs, tracked.admitted
        extend = theirs.num_tokens - theirs.num_computed_tokens
        tracked.admitted = True
        self.ledger.count("admissions", request.client)
        what = "recomputed_tokens" if recompute else "extend_tokens"
        self.ledger.count(what, request.client, extend)
        self.cap.enter(request)
        self.scheduler.on_admitted(request, extend, recompute)

    def end_pass(self) -> None:
        """End the pass, after vLLM's last look at its queue in this step."""
        self._settle()
        if self._selection is not None:
            if self._candidate is not None:  # there was no room for it
                resume(self._selection, False)
            self._selection.close()
        self._selection = self._candidate = None
        self._over = False
        self.view.end_pass()
