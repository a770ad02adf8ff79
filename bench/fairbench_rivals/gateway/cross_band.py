"""llm-d's proposal for fairness across priorities: each priority gets a share of sent requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.params import Positive
from fairbench_rivals.gateway.class_queues import ClassQueues


class CrossBand(ClassQueues):
    """A policy that serves priorities in proportion to their weights, and each priority FCFS.

    The rules follow llm-d-router's issue 1995 (extension point: PR 2920). In the order
    ``priority-first``, a priority's credits are its weight divided by the smallest weight, rounded.
    The next request is taken from the highest priority that has credits left, and costs one credit.
    In the order ``interleaved``, the priority with the lowest virtual time goes first, and each
    request adds 1 / weight to this virtual time.

    llm-d-router's issue 1995 does not say what happens to priorities without requests, which never
    spend their credits. In fairbench, priorities get new credits when no waiting priority has
    credit. The virtual time of a priority without requests does not change, as in llm-d-router's
    issue 1995.
    """

    name = "cross-band"

    @dataclass(frozen=True)
    class Params:
        """``order`` is the order of service; ``weights`` says how a priority p gets its weight.

        - ``proportional``: the weight of priority p is p minus the lowest priority, plus 1.
        - ``linear``: the weight of a priority is the number of priorities minus its rank; the
          highest priority has rank 0.
        - ``explicit``: the weight of a priority is its value in ``shares``, by default 1.

        The ranks and the lowest priority are determined from the priorities of all requests so far.
        """

        order: Literal["priority-first", "interleaved"] = "priority-first"
        weights: Literal["proportional", "linear", "explicit"] = "proportional"
        shares: dict[str, Positive] = field(default_factory=dict)

        def __post_init__(self) -> None:
            """Raise ValueError if ``shares`` has no effect or a key that is not a whole number."""
            if self.shares and self.weights != "explicit":
                raise ValueError(
                    f"shares: has no effect with weights = {self.weights!r}; "
                    "set weights to explicit, too"
                )
            for priority in self.shares:
                if not priority.removeprefix("-").isdecimal():
                    raise ValueError(f"shares.{priority}: the priority must be a whole number")

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.params = params
        # weight of each priority, in descending order of priority
        self._weights: dict[int, float] = {}
        self._credits: dict[int, int] = {}
        self._virtual: dict[int, float] = {}

    def class_of(self, request: Request) -> int:
        return self.priority_of(request)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        priority = self.priority_of(request)
        if priority in self._weights:
            return
        known = sorted({*self._weights, priority}, reverse=True)
        self._weights = {one: self._weight(one, known) for one in known}
        self._virtual.setdefault(priority, 0.0)
        self._credits = self._granted()

    def next_class(self, waiting: Sequence[int], now_s: float) -> int | None:
        if self.params.order == "interleaved":
            return min(waiting, key=self._virtual.__getitem__)
        if all(self._credits[priority] <= 0 for priority in waiting):
            self._credits = self._granted()
        return next(priority for priority in waiting if self._credits[priority] > 0)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        priority = self.priority_of(request)
        self._credits[priority] -= 1
        self._virtual[priority] += 1 / self._weights[priority]

    def balances(self) -> Mapping[str, float]:
        """Return the remaining credits of each priority, keyed by the priority."""
        return {f"{priority}": float(left) for priority, left in self._credits.items()}

    def _granted(self) -> dict[int, int]:
        least = min(self._weights.values())
        return {priority: round(weight / least) for priority, weight in self._weights.items()}

    def _weight(self, priority: int, known: list[int]) -> float:
        if self.params.weights == "proportional":
            return priority - known[-1] + 1
        if self.params.weights == "linear":
            return len(known) - known.index(priority)
        return self.params.shares.get(f"{priority}", 1.0)
