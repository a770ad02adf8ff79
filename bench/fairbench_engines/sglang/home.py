"""The host of a local scheduler in a SGLang scheduler process: its requests and admission passes.

The host makes SGLang walk its queue in the scheduler's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from fairbench.core import Request
from fairbench.live.ledger import Ledger
from fairbench.live.plugin_config import PluginConfig
from fairbench.live.step_times import Decode, Prompt
from fairbench.schedulers.drive import Preempt, Selection, resume, start
from fairbench.schedulers.load_cap import step_units
from fairbench_engines.home import EngineHome, Tracked, request_of
from fairbench_engines.sglang.kept_tree import KeptTree
from fairbench_engines.sglang.match_order import MatchOrder
from fairbench_engines.sglang.preemption import Preemption
from fairbench_engines.sglang.requests import (
    Req,
    client_of,
    context_of,
    outputs_of,
    session_of,
)
from fairbench_engines.sglang.views import ArmedQueue, KeptView, LiveBatch, LiveView


class Next(Enum):
    """The scheduler's request after its candidate found no room."""

    AGAIN = "the same: it has preempted something"
    ANOTHER = "another"
    NOBODY = "no more of this pass"


class Home(EngineHome):
    """The interface between the hooks and the scheduler.

    ``sort(refresh)`` and ``match(req)`` are passed to LiveView.
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
        self._running: dict[Req, None] = {}  # the requests that SGLang has admitted
        self.batch = LiveBatch(self._tracked, self._would_fit)
        self.view = LiveView(sort, match, self.batch, self._tracked, self._ours)
        self.capped = False  # whether the load cap delayed a request in this pass
        self._selection: Selection
        self._candidate: Request | None = None
        # whether the candidate was admitted; None after the scheduler was told
        self._answer: bool | None = None

    @staticmethod
    def name_of(theirs: Req) -> Req:
        """Return the request itself, which identifies it in SGLang."""
        return theirs

    # Arrival and end.

    def accepts(self, req: Req, now_s: float) -> bool:
        """Return whether the scheduler accepts the request; True for a retracted request."""
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

        SGLang does not call requests ``retracted`` that it has preempted for a higher priority.
        """
        request = self._tracked[req].request
        if retracted or req in self._running:
            self.ledger.count("retractions", request.client)
            self._running.pop(req, None)
            if req not in self._preemption.taken:
                self.cap.leave(request)
            self.scheduler.on_retract(request, self.view, now_s)
        else:
            self.ledger.count("arrivals", request.client)
            self.scheduler.on_arrival(request, self.view, now_s)
        self.view.take_in(request)

    def kept_view(self, tree: KeptTree, order: MatchOrder) -> None:
        """Let the queue's view use the matches that are kept."""
        self.view = KeptView(tree, self.batch, order, self._ours)

    def gone(self, theirs: Req) -> None:
        self._running.pop(theirs, None)
        super().gone(theirs)

    def sweep(self, waiting: list[Req]) -> None:
        """Drop requests that SGLang dropped silently: aborted in the queue or between chunks."""
        dropped = [req for req in self._running if req.finished()]
        if len(waiting) != len(self.view):
            queue, view = set(waiting), self.view
            dropped += [
                r for r, one in self._tracked.items() if one.request in view and r not in queue
            ]
        for req in dropped:
            self.gone(req)

    # Admission.

    def arm(self, queue: ArmedQueue, now_s: float) -> None:
        """Let the next walk over the queue follow the scheduler."""
        queue.armed = self._candidates(now_s)

    def _candidates(self, now_s: float) -> Iterator[Req]:
        """Yield the scheduler's candidates when SGLang's own loop asks for them."""
        self.cap.learn(step_units(self.costs))
        selection = self._selection = self.scheduler.select(self.view, now_s)
        try:
            self._candidate = self._request_of(start(selection))
            while self._candidate is not None:
                self._answer = False
                yield self._ours[self._candidate].theirs
                if self._answer is not None:
                    self._resume(self._answer)
        finally:
            selection.close()

    def _resume(self, admitted: bool) -> None:
        self._answer = None
        self._candidate = self._request_of(resume(self._selection, admitted))

    def _request_of(self, candidate: Request | Preempt | None) -> Request | None:
        """Return the next request to try, after carrying out the preemptions before it."""
        while candidate is not None:
            if isinstance(candidate, Preempt):
                answer = self._preempt(candidate)
            elif self._preemption.spent or self.cap.has_room(candidate):
                return candidate
            else:
                answer, self.capped = False, True
            candidate = resume(self._selection, answer)
        return None

    def _preempt(self, wish: Preempt) -> bool:
        """Take a request's memory if it runs; SGLang keeps no copies, so it will be recomputed."""
        if wish.swap or not self.scheduler.preempts:
            return False
        tracked = self._ours.get(wish.request)
        done = tracked is not None and self._preemption.take(tracked.theirs)
        if done:
            self.cap.leave(wish.request)
        return done

    def _would_fit(self, request: Request, without: list[Req]) -> bool:
        gone = [self._tracked[req].request for req in without]
        fits = self.cap.has_room(request, gone)
        return fits and self._preemption.would_fit(self._ours[request].theirs, without)

    def no_room(self, req: Req) -> Next:
        """Report that the candidate had no room; return the scheduler's next action."""
        self._resume(admitted=False)
        if self._candidate is None:
            return Next.NOBODY
        if self._ours[self._candidate].theirs is not req:
            return Next.ANOTHER
        self._answer = False
        return Next.AGAIN

    def admitted(self, req: Req, extend_tokens: int) -> Request:
        """Account the admission of the candidate by SGLang; return the scheduler's view of it."""
        tracked = self._tracked[req]
        self._answer = True
        self.view.leave(tracked.request)
        self._running[req] = None
        self._admit(tracked, extend_tokens)
        return tracked.request

    # Steps.

    def took(
        self,
        started_s: float,
        ended_s: float,
        prompts: Iterable[tuple[Req, int, int]] = (),
        decoding: Iterable[Req] = (),
    ) -> None:
        """Account an iteration to its prompts (request, cached, new tokens) and decoding requests.

        Call this before the iteration's results are ``produced``.
        """
        if self._times is None:
            return
        known = self._tracked
        self._times.step(
            started_s,
            ended_s,
            [
                Prompt(known[req].request, before, new, len(req.output_ids) > known[req].produced)
                for req, before, new in prompts
                if req in known
            ],
            [Decode(known[r].request, context_of(r)) for r in decoding if r in known],
        )

    # Output.

    def produced(self, reqs: list[Req]) -> None:
        """Account a batch's new tokens; overlap scheduling processes a request one step late."""
        for req in reqs:
            if (tracked := self._tracked.get(req)) is not None:
                self._produce(tracked, max(outputs_of(req), tracked.produced))
        for req in reqs:
            if req.finished():
                self.gone(req)
