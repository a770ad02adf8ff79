"""The host of a local scheduler in a vLLM engine core: its requests and admission passes.

vLLM admits the request at the head of its queue; fairbench's scheduler chooses this request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.drive import Preempt, Selection, first_candidate, next_candidate
from fairbench.schedulers.load_cap import step_units
from fairbench_engines.scheduler_host import EngineHome, Theirs, Tracked, request_of
from fairbench_engines.step_times import Decode, PromptPart
from fairbench_engines.vllm.views import (
    REQUEST_ID,
    BlockQueue,
    KeptBlocks,
    LiveQueue,
    VLLMLiveBatch,
    apart_of,
)
from fairbench_load.by_class import ByClass
from fairbench_load.client_metrics import Ledger
from fairbench_load.headers import DEFAULT_CLIENT
from fairbench_load.plugin_config import PluginConfig
from fairbench_load.token_pages import prompt_apart

# In the state WAITING_FOR_REMOTE_KVS, a KV connector loads the prefix of an admitted request.
ADMITTED = ("RUNNING", "WAITING_FOR_REMOTE_KVS")
NEW_TOKEN_IDS, END = attrgetter("new_token_ids"), attrgetter("end")


class StepPart(NamedTuple):
    """A request's part of an engine step: ``tokens`` tokens, which end at position ``end``.

    If ``decoding`` is True, the tokens are the request's latest token and any draft tokens of
    speculative decoding.
    """

    name: str
    end: int
    tokens: int
    decoding: bool


def session_of(theirs: Theirs) -> str | None:
    """Return the session in the field ``vllm_xargs`` of a request's body, or None.

    vLLM's own field ``session_id`` holds the name of the client.
    """
    told = getattr(theirs.sampling_params, "extra_args", None) or {}
    return told.get("session_id")


class VLLMHome(EngineHome):
    """The ``RequestQueue`` of vLLM's scheduler, ordered by a scheduler of fairbench.

    ``engine`` is vLLM's scheduler. ``engine.is_full()`` returns True if vLLM can admit no request
    at present. ``engine.has_slot(theirs)`` returns whether the LoRA adapter of vLLM's request
    ``theirs`` can be loaded.
    """

    view: LiveQueue | BlockQueue

    def __init__(
        self, config: PluginConfig, ledger: Ledger, engine: Any, kept: KeptBlocks | None = None
    ) -> None:
        super().__init__(config, ledger)
        self._engine = engine
        batch = VLLMLiveBatch(engine, self._tracked)
        if kept is not None:
            self.view = BlockQueue(kept, batch, self._matched, self._ours)
        else:
            aware = self.scheduler.cache_aware
            self.view = LiveQueue(batch, self._matched, self._ours, cache_aware=aware)
        self._selection: Selection | None = None
        self._candidate: Tracked | None = None
        # the request that vLLM has taken from the queue, and will admit or skip
        self._popped: Tracked | None = None
        # admitted requests whose prompts may still need memory; used only with memory shares
        self._prefilling: dict[Tracked, None] = {}
        self._lost: list[Tracked] = []  # requests preempted after the last admission pass
        self._ended_s = 0.0
        self._over = False  # whether the scheduler has no further candidate in this pass
        self._in_pass = False
        self.now_s = 0.0

    @staticmethod
    def name_of(theirs: Theirs) -> str:
        """Return the id by which vLLM knows a request."""
        name: str = theirs.request_id
        return name

    def request_of(self, name: str) -> Request | None:
        """Look up fairbench's request by the name of vLLM's request; return None if unknown."""
        tracked = self._tracked.get(name)
        return None if tracked is None else tracked.request

    def __len__(self) -> int:
        return len(self.view)

    def __iter__(self) -> Iterator[Theirs]:
        return iter([self._ours[request].theirs for request in self.view.queue_order()])

    def add_request(self, theirs: Theirs) -> None:
        """Append a request that vLLM adds to the waiting queue."""
        now_s, tracked = self._engine.now_s(), self._tracked.get(theirs.request_id)
        if tracked is None:
            tracked = self._track(theirs, now_s)
            self.ledger.count("arrivals", tracked.request.client)
            self._arrive(tracked.request, now_s)
        else:  # the next turn of a session; the prompt contains the session's earlier output
            tracked.produced = min(tracked.produced, theirs.num_output_tokens)
            self.cap.leave(tracked.request)
            self._arrive(tracked.request, now_s, again=True)
        self._take_in(tracked.request)

    def _track(self, theirs: Theirs, now_s: float) -> Tracked:
        ids = theirs.prompt_token_ids or [0] * theirs.num_prompt_tokens
        tag, number = theirs.session_id or DEFAULT_CLIENT, next(self._numbers)
        priority, session = theirs.priority, session_of(theirs)
        request = request_of(tag, ids, theirs.max_tokens, number, now_s, priority, session)
        prompt = prompt_apart(ids, apart_of(theirs))
        tracked = self._ours[request] = Tracked(request, theirs, prompt)
        self._tracked[theirs.request_id] = tracked
        return tracked

    def _take_in(self, request: Request, *, first: bool = False) -> None:
        self.view.take_in(request, first=first)
        if isinstance(self.scheduler, ByClass):
            self.scheduler.requeue(request, first=first)

    def _leave(self, request: Request) -> None:
        self.view.leave(request)
        if isinstance(self.scheduler, ByClass):
            self.scheduler.leave_class(request)

    def prepend_request(self, theirs: Theirs) -> None:
        """Put a preempted request at the head of the waiting queue."""
        tracked = self._tracked[theirs.request_id]
        self.ledger.count("retractions", tracked.request.client)
        self.cap.leave(tracked.request)
        tracked.prompt = prompt_apart(theirs.all_token_ids, apart_of(theirs))
        self._lost.append(tracked)
        self._arrive(tracked.request, self._engine.now_s(), again=True)
        self._take_in(tracked.request, first=True)

    def prepend_requests(self, requests: Iterable[Theirs]) -> None:
        """Put skipped requests back at the head of the queue, in reverse order."""
        self._close_pass()
        for theirs in requests:
            self._take_in(self._tracked[theirs.request_id].request, first=True)

    def remove_request(self, theirs: Theirs) -> None:
        """Remove an aborted request from the queue, if it waits there."""
        tracked = self._tracked.get(theirs.request_id)
        if tracked is not None and tracked.request in self.view:
            self._leave(tracked.request)

    def remove_requests(self, requests: Iterable[Theirs]) -> None:
        for theirs in requests:
            self.remove_request(theirs)

    def produced(self, outputs: Collection[Any]) -> None:
        """Charge the new output tokens of a step; ``outputs`` are EngineCoreOutput objects."""
        self._produce(map(REQUEST_ID, outputs), map(len, map(NEW_TOKEN_IDS, outputs)))

    def last_output(self, theirs: Theirs) -> None:
        """Charge the last output tokens of a request that ends before vLLM reports them."""
        if (tracked := self._tracked.get(theirs.request_id)) is not None:
            new = theirs.num_output_tokens - tracked.produced
            self._produce([theirs.request_id], [new])

    def took(self, started_s: float, ended_s: float, parts: list[StepPart]) -> None:
        """Divide a step's time among its requests, and fit the cost model to the step's time.

        The step's results may still be unknown when this method is called. If a step was scheduled
        during the previous step, its time begins at the end of the previous step.
        """
        started_s, self._ended_s = max(started_s, self._ended_s), ended_s
        if self._times is not None:
            self._times.step(started_s, ended_s, *self._split(parts))
        if self.costs is None or not parts:
            return
        chunks = [(one.end - one.tokens, one.tokens) for one in parts if not one.decoding]
        if chunks:  # a step that computes prompts is observed as a prefill, even if it decodes too
            self.costs.observe_prefill(chunks, ended_s - started_s)
        else:
            context = sum(map(END, parts))
            self.costs.observe_decode(len(parts), context, ended_s - started_s)

    def _split(self, parts: list[StepPart]) -> tuple[list[PromptPart], list[Decode]]:
        prompts, decoding = [], []
        for name, end, tokens, decodes in parts:
            if (one := self._tracked.get(name)) is None:
                continue
            if decodes:
                decoding.append(Decode(one.request, end))
            else:
                complete = end >= one.theirs.num_tokens
                prompts.append(PromptPart(one.request, end - tokens, tokens, complete))
        return prompts, decoding

    def _matched(self, request: Request) -> int:
        theirs = self._ours[request].theirs
        found: int = self._engine.kv_cache_manager.get_computed_blocks(theirs)[1]
        return found

    def begin_pass(self) -> None:
        self._in_pass, self.now_s = True, self._engine.now_s()
        self.look(self.now_s)
        lost, self._lost = self._lost, []
        # A step in flight may have added an output token to a request that vLLM has preempted.
        for tracked in lost:
            ids = tracked.theirs.all_token_ids
            if tracked.request in self.view and len(ids) > prompt_tokens(tracked.prompt):
                tracked.prompt = prompt_apart(ids, apart_of(tracked.theirs))
                self.view.grown(tracked.request)

    def __bool__(self) -> bool:
        """Return whether the admission pass has a candidate; vLLM asks before each admission."""
        if not self._in_pass or self._engine.is_full():
            return len(self) > 0
        return self.peek_request() is not None

    def peek_request(self) -> Theirs | None:
        """Return the scheduler's next candidate, or None if the pass has no more candidates."""
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
            self._selection = self._select(self.now_s)
            found = None if self._selection is None else first_candidate(self._selection)
        else:
            found = next_candidate(self._selection, True)
        while found is not None:
            assert self._selection is not None
            # ``Preempt`` is ignored, because vLLM decides when to preempt; ``check_config`` refuses
            # schedulers that must preempt.
            if not isinstance(found, Preempt) and self.cap.has_room(found):
                tracked = self._ours[found]
                if self._engine.has_slot(tracked.theirs):
                    return tracked
            found = next_candidate(self._selection, False)
        return None

    def _pending(self) -> Iterator[tuple[Request, int]]:
        for one in list(self._prefilling):
            request = one.request
            left = prompt_tokens(one.prompt) - one.theirs.num_computed_tokens
            if left > 0 and request in self._ours and request not in self.view:
                yield request, left
            else:
                del self._prefilling[one]

    def pop_request(self) -> Theirs:
        """Remove the request at the head of the queue, for vLLM to admit or skip."""
        theirs = self.peek_request()
        assert self._candidate is not None
        self._popped, self._candidate = self._candidate, None
        self._leave(self._popped.request)
        return theirs

    def _settle(self) -> None:
        """Find out from the status of the popped request whether vLLM admitted or skipped it."""
        popped, self._popped = self._popped, None
        if popped is None:
            return
        theirs = popped.theirs
        if theirs.status.name in ADMITTED:
            # If a KV connector loads a whole prompt, vLLM computes the prompt's last
            # token again.
            self._admit(popped, max(theirs.num_tokens - theirs.num_computed_tokens, 1))
            if self._shares is not None:
                self._prefilling[popped] = None
        elif self._selection is not None:  # vLLM skipped the candidate request
            self._selection.close()
            self._selection = None

    def end_pass(self) -> None:
        """End the admission pass, if one is in progress."""
        if self._in_pass:
            self._in_pass = False
            self._close_pass()

    def _close_pass(self) -> None:
        self._settle()
        if self._selection is not None:
            if self._candidate is not None:  # The candidate request did not fit into memory.
                next_candidate(self._selection, False)
            self._selection.close()
        self._selection = self._candidate = None
        self._over = False
        super().end_pass()
