"""The class that runs a local scheduler of fairbench inside SGLang.

The class makes SGLang try waiting requests in the scheduler's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from operator import sub

from fairbench.core import Request
from fairbench.schedulers.drive import Preempt, Selection, first_candidate, next_candidate
from fairbench.schedulers.load_cap import step_units
from fairbench_engines.scheduler_host import PRODUCED, EngineHome, Tracked, request_of
from fairbench_engines.sglang.kept_tree import KeptTree
from fairbench_engines.sglang.match_order import MatchOrderHooks
from fairbench_engines.sglang.preemption import Preemption
from fairbench_engines.sglang.requests import (
    OUTPUT_IDS,
    Req,
    client_of,
    context_of,
    ended_of,
    loaded_len,
    outputs_of,
    prefix_len,
    session_of,
)
from fairbench_engines.sglang.views import ArmedQueue, KeptView, LiveView, SGLangLiveBatch
from fairbench_engines.step_times import Decode, PromptPart
from fairbench_load.client_metrics import Ledger
from fairbench_load.plugin_config import PluginConfig


class Next(Enum):
    """The scheduler's reaction when a candidate does not fit into memory."""

    AGAIN = "the same: it has preempted something"
    ANOTHER = "another"
    NOBODY = "no more of this pass"


class SGLangHome(EngineHome):
    """The interface between the plugin's hooks and the scheduler.

    ``sort(refresh)`` and ``match(req)`` have the same meaning as in LiveView.
    """

    view: LiveView | KeptView

    def __init__(
        self,
        config: PluginConfig,
        ledger: Ledger,
        sort: Callable[[bool], list[Req]],
        match: Callable[[Req], int],
        preemption: Preemption | None = None,
    ) -> None:
        super().__init__(config, ledger)
        self._preemption = preemption or Preemption()
        # requests that SGLang runs, in order of admission
        self._running: dict[Req, None] = {}
        self.batch = SGLangLiveBatch(self._tracked, self._would_fit)
        self.view = LiveView(sort, match, self.batch, self._tracked, self._ours)
        # the request whose prompt this pass continues with a further chunk, or None
        self.chunked: Req | None = None
        self.capped = False  # whether the scheduler's load cap delayed a request in this pass
        self._selection: Selection
        self._candidate: Request | None = None
        # whether SGLang admitted the candidate; None after the scheduler has received this answer
        self._answer: bool | None = None

    @staticmethod
    def name_of(theirs: Req) -> Req:
        """Return ``theirs`` itself, because SGLang's request objects serve as keys."""
        return theirs

    def accepts(self, req: Req, now_s: float) -> bool:
        """Return whether the scheduler accepts a request; retracted requests are accepted."""
        if req in self._tracked:
            return True
        tracked = self._track(req, now_s)
        if self.scheduler.accepts(tracked.request, now_s):
            self._tracked[req] = self._ours[tracked.request] = tracked
            return True
        self.ledger.count("refusals", tracked.request.client)
        return False

    def _track(self, req: Req, now_s: float) -> Tracked:
        most = req.sampling_params.max_new_tokens
        number = next(self._numbers)
        priority = 0 if self.config.classes is None else req.priority
        request = request_of(
            *(client_of(req), req.origin_input_ids, most, number, now_s, priority),
            session=session_of(req),
        )
        return Tracked(request, req, request.prompt)

    def queued(self, req: Req, retracted: bool, now_s: float) -> None:
        """Handle a request that SGLang has appended to its queue.

        If a request of higher priority preempted ``req``, SGLang does not set ``retracted``.
        """
        request = self._tracked[req].request
        if retracted or req in self._running:
            self.ledger.count("retractions", request.client)
            self._running.pop(req, None)
            if req not in self._preemption.taken:
                self.cap.leave(request)
            self._arrive(request, now_s, again=True)
        else:
            self.ledger.count("arrivals", request.client)
            self._arrive(request, now_s)
        self.view.take_in(request)

    def kept_view(self, tree: KeptTree, order: MatchOrderHooks) -> None:
        """Use the stored prefix look-ups of ``tree`` in the scheduler's view of the queue."""
        self.view = KeptView(tree, self.batch, order, self._ours)

    def gone(self, theirs: Req) -> None:
        self._running.pop(theirs, None)
        super().gone(theirs)

    def sweep(self, waiting: list[Req]) -> None:
        """Forget requests that SGLang aborted silently, in the queue or between two chunks."""
        dropped = ended_of(self._running)
        if len(waiting) != len(self.view):
            queue, view = set(waiting), self.view
            dropped += [
                r for r, one in self._tracked.items() if one.request in view and r not in queue
            ]
        for req in dropped:
            self.gone(req)

    def discover(self, waiting: list[Req], now_s: float) -> None:
        """Handle requests that SGLang queued without calling ``_add_request_to_queue``."""
        if len(waiting) == len(self.view):
            return
        for req in waiting:
            tracked = self._tracked.get(req)
            if tracked is None or tracked.request not in self.view:
                self.accepts(req, now_s)
                self.queued(req, False, now_s)

    def clients(self) -> Iterator[str]:
        """Yield the client of each waiting or running request."""
        return (one.request.client for one in self._tracked.values())

    def arm(self, queue: ArmedQueue, now_s: float) -> None:
        """Make the next iteration over SGLang's queue follow the scheduler's order."""
        self.look(now_s)
        queue.armed = self.candidates(now_s)

    def candidates(self, now_s: float) -> Iterator[Req]:
        """Yield the scheduler's candidates for admission, one whenever SGLang's own loop asks."""
        self.cap.learn(step_units(self.costs))
        if (selection := self._select(now_s)) is None:
            return
        self._selection = selection
        try:
            self._candidate = self._request_of(first_candidate(selection))
            while self._candidate is not None:
                self._answer = False
                yield self._ours[self._candidate].theirs
                if self._answer is not None:
                    self._resume(self._answer)
        finally:
            selection.close()

    def _pending(self) -> Iterator[tuple[Request, int]]:
        req = self.chunked
        if req is not None and (tracked := self._tracked.get(req)) is not None:
            yield tracked.request, context_of(req) - prefix_len(req)

    def _resume(self, admitted: bool) -> None:
        self._answer = None
        self._candidate = self._request_of(next_candidate(self._selection, admitted))

    def _request_of(self, candidate: Request | Preempt | None) -> Request | None:
        """Carry out preemptions until the scheduler names a request, and return this request."""
        while candidate is not None:
            if isinstance(candidate, Preempt):
                answer = self._preempt(candidate)
            elif self._preemption.spent or self.cap.has_room(candidate):
                return candidate
            else:
                answer, self.capped = False, True
            candidate = next_candidate(self._selection, answer)
        return None

    def _preempt(self, wish: Preempt) -> bool:
        """Preempt a running request, whose tokens SGLang will compute again."""
        if wish.swap or not self.scheduler.preempts:
            return False
        tracked = self._ours.get(wish.request)
        done = tracked is not None and self._preemption.take(tracked.theirs)
        if done:
            self.cap.leave(wish.request)
            if self._shares is not None:
                self._shares.changed()
        return done

    def _would_fit(self, request: Request, without: list[Req]) -> bool:
        gone = [self._tracked[req].request for req in without]
        fits = self.cap.has_room(request, gone)
        return fits and self._preemption.would_fit(self._ours[request].theirs, without)

    def no_room(self, req: Req) -> Next:
        """Report that a candidate lacks memory in the engine; return the scheduler's reaction."""
        self._resume(admitted=False)
        if self._candidate is None:
            return Next.NOBODY
        if self._ours[self._candidate].theirs is not req:
            return Next.ANOTHER
        self._answer = False
        return Next.AGAIN

    def admitted(self, req: Req, extend_tokens: int) -> Request:
        """Report the admission of a candidate to the scheduler; return fairbench's request."""
        tracked = self._tracked[req]
        self._answer, tracked.loaded = True, loaded_len(req)
        self.view.leave(tracked.request)
        self._running[req] = None
        self._admit(tracked, extend_tokens)
        return tracked.request

    def allocated(self, req: Req) -> None:
        """Report that a decode server allocated memory for a request's prompt and first token."""
        self.admitted(req, 0)
        tracked = self._tracked[req]
        tracked.produced = max(tracked.produced, 1)

    def took(
        self,
        started_s: float,
        ended_s: float,
        prompts: Iterable[tuple[Req, int, int]] = (),
        decoding: Iterable[Req] = (),
    ) -> None:
        """Divide an iteration's time among the prompts and the decoding requests.

        ``prompts`` yields (request, cached tokens, new tokens). Call ``took`` before ``produced``
        in each iteration.
        """
        if self._times is None:
            return
        known = self._tracked
        self._times.step(
            started_s,
            ended_s,
            [self._part(known[req], before, new) for req, before, new in prompts if req in known],
            [Decode(known[r].request, context_of(r)) for r in decoding if r in known],
        )

    def _part(self, tracked: Tracked, cached: int, new: int) -> PromptPart:
        complete = len(tracked.theirs.output_ids) > tracked.produced
        load_s = self.costs.load_s(tracked.loaded) if self.costs and tracked.loaded else 0.0
        tracked.loaded = 0
        return PromptPart(tracked.request, cached, new, complete, load_s)

    def loaded(self, reqs: Iterable[Req]) -> int:
        """Return the number of tokens that the next step loads from host memory for ``reqs``."""
        return sum(self._tracked[req].loaded for req in reqs if req in self._tracked)

    def produced(self, reqs: list[Req]) -> None:
        """Charge a batch's new tokens, which arrive a step late under overlap scheduling."""
        ended = ended_of(reqs)
        known = list(filter(self._tracked.__contains__, reqs))
        totals = list(map(len, map(OUTPUT_IDS, known)))
        for req in filter(self._tracked.__contains__, ended):
            totals[known.index(req)] = outputs_of(req)
        before = map(PRODUCED, map(self._tracked.__getitem__, known))
        self._produce(known, map(sub, totals, before))
        for req in ended:
            self.gone(req)
