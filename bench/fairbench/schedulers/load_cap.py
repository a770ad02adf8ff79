"""Load cap: an engine admits no more than makes its steps efficient, the rest waits.

With a large KV pool thousands may run at once, nothing waits, and no fair order has anything to
order. A limit on requests (``max_running_requests``) cures that too, but the right one depends on
how long they are; this one is a limit on their cost.
"""

from __future__ import annotations

from math import inf

from fairbench.core import CostModel, Request
from fairbench.errors import UsageError
from fairbench.schedulers.batch_cost import BatchCost, step_units

AUTO = "auto"
NONE = "none"
CAP_UNITS = 5  # under which a step is 5/6 useful


class LoadCap:
    """Whether one more request may run. Nothing is said of memory.

    ``most_tokens`` is never exceeded, but by a single request that is alone. The engine tells what
    it admits (``enter``), takes memory back from (``leave``) and has done (``finish``).
    """

    def __init__(self, most_tokens: float, request_tokens: float = 0.0) -> None:
        self.most_tokens = most_tokens
        self._request_tokens = request_tokens
        self._running = BatchCost()
        self.enter = self._running.enter
        self.leave = self._running.leave
        self.finish = self._running.finish

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> float:
        """The cost of what runs."""
        return self._running.tokens(self._request_tokens)

    def has_room(self, request: Request) -> bool:
        """Whether it may be admitted now."""
        if not len(self._running):
            return True
        more = self._running.expected_context(request) + self._request_tokens
        return self.tokens + more <= self.most_tokens


def load_cap(setting: str | int | None, costs: CostModel) -> LoadCap:
    """The cap that ``setting`` asks for: ``auto`` by the engine's costs, tokens, or none.

    Raises UsageError where the costs say nothing.
    """
    if setting is None or setting == NONE:
        return LoadCap(inf)
    units = step_units(costs)
    if units is None:
        raise UsageError(f"load_cap = {setting!r}: nobody knows what a decode step takes here")
    most = CAP_UNITS * units.unit_tokens if setting == AUTO else float(setting)
    return LoadCap(most, units.request_tokens)
