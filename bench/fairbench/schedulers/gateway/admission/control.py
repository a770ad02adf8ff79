"""Admission control before the cluster, which refuses or demotes requests that would be late."""

from __future__ import annotations

from collections.abc import Collection

from fairbench.core import Request
from fairbench.schedulers.base import Read
from fairbench.schedulers.gateway.admission.estimate import NOBODY, Estimator, RequestTotals
from fairbench.schedulers.gateway.queue import HoldsRequests, Send
from fairbench.schedulers.gateway.registry import REFUSE, AdmissionParams


class AdmissionControl:
    """A test of each arrival against its deadline before ``queue`` gets it (see ``HoldsRequests``).

    A request passes if the estimate (``estimate``) puts it in time at any worker, or if it has no
    deadline. Otherwise it is refused or, with ``policy=demote``, marked and queued here until no
    other request is queued here and a worker has no waiting request, or until it is ``aging_s``
    old. The estimate is made once, on arrival: a request that takes longer than expected is late,
    not refused.
    """

    def __init__(self, queue: HoldsRequests, estimator: Estimator, params: AdmissionParams) -> None:
        self.queue = queue
        self.params = params
        self._estimator = estimator
        self._held = RequestTotals()  # requests in the queue that have not been sent
        self._demoted: dict[Request, float] = {}  # request -> latest end of its wait here
        self._late_s: float | None = None

    def __len__(self) -> int:
        return len(self._held) + len(self._demoted)

    def late_by_s(self, request: Request, now_s: float) -> float:
        """Return how late a request would be at the best worker; 0 or less means in time."""
        if request.next_deadline_s is None:
            return 0.0
        return min(self._late_at(request, now_s, self._held).values(), default=0.0)

    def rerouted(self, request: Request, worker: int, now_s: float) -> int:
        """Return the final worker of a request routed to ``worker``; see ``reroute``."""
        if request.next_deadline_s is None:
            return worker
        late = self._late_at(request, now_s, NOBODY)
        best = min(late, key=lambda one: (late[one], one), default=worker)
        return best if late.get(worker, 0.0) > 0 >= late.get(best, 1.0) else worker

    def enter(self, request: Request, now_s: float) -> bool:
        self._late_s = None
        late_s = self.late_by_s(request, now_s)
        if late_s <= 0:
            return self._pass_on(request, now_s)
        if self.params.policy == REFUSE:
            self._late_s = late_s
            return False
        request.demoted = True
        self._demoted[request] = now_s + self.params.aging_s
        return True

    def retry_after_s(self) -> float | None:
        """Return how late the last request refused here would have been."""
        return self._late_s

    def shed(self, now_s: float) -> Collection[Request]:
        gone = self.queue.shed(now_s)
        for request in gone:
            self._held.remove(request)
        return gone

    def release(self, now_s: float, send: Send) -> None:
        def sent(request: Request, worker: int) -> None:
            self._held.remove(request)
            self._estimator.sent(request, worker)
            send(request, worker)

        self.queue.release(now_s, sent)
        while (request := next(iter(self._demoted), None)) is not None:
            if not (self._demoted[request] <= now_s or self._is_idle()):
                return
            del self._demoted[request]
            if not self._pass_on(request, now_s):
                # the request was accepted, so it must not be lost
                self._demoted[request] = now_s + self.params.aging_s
                return
            self.queue.release(now_s, sent)

    def wake_s(self, now_s: float) -> float | None:
        times_s = [self.queue.wake_s(now_s), *list(self._demoted.values())[:1]]
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def moved(self, request: Request, worker: int | None) -> None:
        self._estimator.moved(request, worker)
        self.queue.moved(request, worker)

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        self._estimator.over(request, output_tokens)
        self.queue.finish(request, output_tokens, now_s, read)

    def withdraw(self, request: Request) -> None:
        if request in self._demoted:
            del self._demoted[request]
        else:
            self._held.remove(request)
            self.queue.withdraw(request)

    def _pass_on(self, request: Request, now_s: float) -> bool:
        entered = self.queue.enter(request, now_s)
        if entered:
            self._held.add(request)
        return entered

    def _is_idle(self) -> bool:
        """Return whether no other request is queued and some worker has no waiting request."""
        return not self._held and self._estimator.any_free()

    def _late_at(self, request: Request, now_s: float, held: RequestTotals) -> dict[int, float]:
        found = self._estimator.of(request, held)
        margin = self.params.margin
        return {
            worker: one._replace(first_s=margin * one.first_s, end_s=margin * one.end_s).late_by_s(
                request, now_s
            )
            for worker, one in found.items()
        }
