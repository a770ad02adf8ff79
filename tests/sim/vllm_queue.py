"""A local scheduler of fairbench in place of vLLM's queue of waiting requests.

vLLM peeks at the head of its queue, tries it, and pops it if it fits. The head is the scheduler's
candidate, and a popped request is an answer of True. Like vLLM, the scheduler must stop at the
first request that does not fit.
"""

from __future__ import annotations

from fairbench.core import PS_PER_S
from fairbench.schedulers.views import ListView


class SchedulerQueue:
    """A vLLM ``RequestQueue`` around a scheduler.

    ``sequence_of`` finds the simulator's sequence of a vLLM request. ``admit`` gets the popped
    ones.
    """

    def __init__(self, scheduler, clock, sequence_of, matched, admit):
        self._scheduler, self._clock = scheduler, clock
        self._sequence_of, self._admit = sequence_of, admit
        self._theirs = {}  # our request -> vLLM's request
        self._view = ListView(
            [],
            lambda request: matched(self._theirs[request]),
            lambda request: sequence_of(self._theirs[request]).prompt,
        )
        self._selection = self._candidate = None

    @property
    def _now_s(self):
        return self._clock.now_ps / PS_PER_S

    def __len__(self):
        return len(self._view)

    def add_request(self, request):
        ours = self._sequence_of(request).request
        self._scheduler.on_arrival(ours, self._view, self._now_s)
        self._theirs[ours] = request
        self._view.enter(ours)

    def prepend_request(self, request):
        """Take back a preempted request."""
        ours = self._sequence_of(request).request
        self._scheduler.on_retract(ours, self._view, self._now_s)
        self._theirs[ours] = request
        self._view.enter_first(ours)

    def prepend_requests(self, requests):
        assert not list(requests), "those that vLLM had to pass over"

    def peek_request(self):
        if self._candidate is None:
            if self._selection is None:
                self._selection = self._scheduler.select(self._view, self._now_s)
                self._candidate = next(self._selection)
            else:
                self._candidate = self._selection.send(True)
        return self._theirs[self._candidate]

    def pop_request(self):
        ours, self._candidate = self._candidate, None
        request = self._theirs.pop(ours)
        self._view.leave(ours)
        self._admit(request)
        return request

    def end_pass(self):
        """End the pass, because vLLM does not use the queue again in this step."""
        if self._selection is not None:
            self._selection.close()
        self._selection = self._candidate = None
