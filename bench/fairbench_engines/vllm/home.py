"""The host of a local scheduler in a vLLM engine core: its requests and admission passes.

vLLM admits by peeking at the head of its queue: our scheduler names the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fairbench.core import Request, prompt_tokens
from fairbench.live.headers import DEFAULT_CLIENT
from fairbench.live.ledger import FIRST_TOKEN, Ledger
from fairbench.live.plugin_config import PluginConfig
from fairbench.live.step_times import Decode, Prompt
from fairbench.schedulers.drive import Preempt, Selection, resume, start
from fairbench.schedulers.load_cap import step_units
from fairbench.schedulers.token_pages import segments_of
from fairbench_engines.home import EngineHome, Theirs, Tracked, request_of
from fairbench_engines.vllm.views import BlockQueue, KeptBlocks, LiveBatch, LiveQueue


class Part(NamedTuple):
    """A request's part of a step: ``tokens`` computed up to ``end`` of prompt and outputs."""

    name: str
    end: int
    tokens: int


class Home(EngineHome):
    """The host of a scheduler, used as the ``RequestQueue`` of vLLM's scheduler.

    ``engine`` is vLLM's scheduler. Its ``is_full()`` returns whether it could not admit any
    request.
    """

    view: LiveQueue | BlockQueue

    def __init__(
        self, config: PluginConfig, ledger: Ledger, engine: Any, kept: KeptBlocks | None = None
    ) -> None:
        super().__init__(config, ledger)
        self._engine = engine
        batch = LiveBatch(engine, self._tracked)
        if kept is not None:
            self.view = BlockQueue(kept, batch, self._matched, self._ours)
        else:
            aware = self.scheduler.cache_aware
            self.view = LiveQueue(batch, self._matched, self._ours, cache_aware=aware)
        self._selection: Selection | None = None
        self._candidate: Tracked | None = None
        # taken from the queue, for vLLM to admit or to pass over
        self._popped: Tracked | None = None
        self._lost: list[Tracked] = []  # preempted since the last pass
        self._ended_s = 0.0  # the end of the last step
        self._over = False  # whether the scheduler names no other request in this pass
        self._in_pass = False
        self.now_s = 0.0  # time of the current pass

    @staticmethod
    def name_of(theirs: Theirs) -> str:
        """Return vLLM's id of its request."""
        name: str = theirs.request_id
        return name

    def request_of(self, name: str) -> Request | None:
        """Return our request for the name of one of vLLM's, None if there is none."""
        tracked = self._tracked.get(name)
        return None if tracked is None else tracked.request

    # Arrivals and ends of requests.

    def __len__(self) -> int:
        return len(self.view)

    def __iter__(self) -> Iterator[Theirs]:
        return iter([self._ours[request].theirs for request in self.view.queue_order()])

    def add_request(self, theirs: Theirs) -> None:
        """Append a request that vLLM has queued."""
        now_s, tracked = self._engine.now_s(), self._tracked.get(theirs.request_id)
        if tracked is None:
            tracked = self._track(theirs, now_s)
            self.ledger.count("arrivals", tracked.request.client)
            self.scheduler.on_arrival(tracked.request, self.view, now_s)
        else:  # a session continues: its request has stopped running, and waits again
            self.cap.leave(tracked.request)
            self.scheduler.on_retract(tracked.request, self.view, now_s)
        self.view.take_in(tracked.request)

    def _track(self, theirs: Theirs, now_s: float) -> Tracked:
        ids = theirs.prompt_token_ids or [0] * theirs.num_prompt_tokens
        tag, number = theirs.session_id or DEFAULT_CLIENT, next(self._numbers)
        request = request_of(tag, ids, theirs.max_tokens, number, now_s, theirs.priority)
        tracked = self._ours[request] = Tracked(request, theirs, request.prompt)
        self._tracked[theirs.request_id] = tracked
        return tracked

    def prepend_request(self, theirs: Theirs) -> None:
        """Take back a running request that lost its memory."""
        tracked = self._tracked[theirs.request_id]
        self.ledger.count("retractions", tracked.request.client)
        self.cap.leave(tracked.request)
        tracked.prompt = segments_of(theirs.all_token_ids)
        self._lost.append(tracked)
        self.scheduler.on_retract(tracked.request, self.view, self._engine.now_s())
        self.view.take_in(tracked.request, first=True)

    def prepend_requests(self, requests: Iterable[Theirs]) -> None:
        """Take back requests that vLLM skipped for its own reason, the last one first."""
        self._close_pass()
        for theirs in requests:
            self.view.take_in(self._tracked[theirs.request_id].request, first=True)

    def remove_request(self, theirs: Theirs) -> None:
        """Remove an aborted request. A request that does not wait is ignored."""
        tracked = self._tracked.get(theirs.request_id)
        if tracked is not None and tracked.request in self.view:
            self.view.leave(tracked.request)

    def remove_requests(self, requests: Iterable[Theirs]) -> None:
        for theirs in requests:
            self.remove_request(theirs)

    def produced(self, names: Iterable[str]) -> None:
        """Account the new output tokens of the named requests; unknown requests are ignored."""
        by_client: dict[str, int] = {}
        for name in names:
            if (tracked := self._tracked.get(name)) is None:
                continue
            total: int = tracked.theirs.num_output_tokens
            new, tracked.produced = total - tracked.produced, total
            if new > 0:  # an input stream has fewer: its outputs have become part of the prompt
                client = tracked.request.client
                if new == total:
                    self.ledger.waited(FIRST_TOKEN, tracked.request)
                by_client[client] = by_client.get(client, 0) + new
                if self.scheduler.per_request_tokens:
                    self.scheduler.on_request_tokens(tracked.request, new)
        for client, new in by_client.items():
            self.ledger.count("output_tokens", client, new)
            self.scheduler.on_tokens(client, new)

    def took(self, started_s: float, ended_s: float, parts: list[Part]) -> None:
        """Account a step's time to its requests before the step's results, and fit the costs.

        A step that was scheduled during another one took the time since that one ended.
        """
        started_s, self._ended_s = max(started_s, self._ended_s), ended_s
        if self._times is not None:
            self._times.step(started_s, ended_s, *self._split(parts))
        chunks = [(end - tokens, tokens) for _, end, tokens in parts if tokens > 1]
        if self.costs is None or not parts:
            return
        if chunks:  # the time of such a step is attributed to its prompts
            self.costs.observe_prefill(chunks, ended_s - started_s)
        else:
            context = sum(end for _, end, _ in parts)
            self.costs.observe_decode(len(parts), context, ended_s - started_s)

    def _split(self, parts: list[Part]) -> tuple[list[Prompt], list[Decode]]:
        prompts, decoding = [], []
        for name, end, tokens in parts:
            if (one := self._tracked.get(name)) is None:
                continue
            if tokens == 1 and one.produced:
                decoding.append(Decode(one.request, end))
            else:
                complete = end >= one.theirs.num_tokens
                prompts.append(Prompt(one.request, end - tokens, tokens, complete))
        return prompts, decoding

    def _matched(self, request: Request) -> int:
        """Return the cached tokens of the prompt to prefill, by vLLM's own look-up."""
        theirs = self._ours[request].theirs
        found: int = self._engine.kv_cache_manager.get_computed_blocks(theirs)[1]
        return found

    # Admission passes.

    def begin_pass(self) -> None:
        self._in_pass, self.now_s = True, self._engine.now_s()
        lost, self._lost = self._lost, []
        for tracked in lost:  # a step in flight may have given one of them a token
            ids = tracked.theirs.all_token_ids
            if tracked.request in self.view and len(ids) > prompt_tokens(tracked.prompt):
                tracked.prompt = segments_of(ids)
                self.view.grown(tracked.request)

    def __bool__(self) -> bool:
        """Return whether the scheduling pass has a candidate. vLLM asks before each attempt."""
        if not self._in_pass or self._engine.is_full():
            return len(self) > 0
        return self.peek_request() is not None

    def peek_request(self) -> Theirs | None:
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
            # vLLM preempts by itself, see ``limits``.
            if not isinstance(found, Preempt) and self.cap.has_room(found):
                return self._ours[found]
            found = resume(self._selection, False)
        return None

    def pop_request(self) -> Theirs:
        """Remove the head from the queue; vLLM runs it, or puts it back after the pass."""
        theirs = self.peek_request()
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
            theirs = popped.theirs
            self._admit(popped, theirs.num_tokens - theirs.num_computed_tokens)
        elif self._selection is not None:  # passed over, so the scheduler starts again
            self._selection.close()
            self._selection = None

    def end_pass(self) -> None:
        """End the pass, after vLLM's last look at its queue in this step; idempotent."""
        if self._in_pass:
            self._in_pass = False
            self._close_pass()

    def _close_pass(self) -> None:
        self._settle()
        if self._selection is not None:
            if self._candidate is not None:  # there was no room for the request
                resume(self._selection, False)
            self._selection.close()
        self._selection = self._candidate = None
        self._over = False
        super().end_pass()
