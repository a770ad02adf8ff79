"""Load cap: an engine admits requests until its steps are efficient; the rest waits.

With a large KV pool thousands may run at once, nothing waits, and no fair order has anything to
order. A limit on requests (``max_running_requests``) cures that too, but the right one depends on
how long they are; this one is a limit on their cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from fairbench.compiled import mypyc_attr
from fairbench.core import CostModel, Request
from fairbench.errors import UsageError
from fairbench.schedulers.batch_cost import BatchCost, OutputLengths, StepUnits, step_units

AUTO = "auto"
NONE = "none"
CAP_UNITS = 5  # under which a step is 5/6 useful


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadCap:
    """A limit on the total load of running requests, in addition to the memory limit.

    ``most_tokens`` is never exceeded, except by a single request that runs alone. The engine
    reports requests that it admits (``enter``), takes memory back from (``leave``) and has finished
    (``finish``).

    ``setting`` is ``auto``, ``none`` or tokens. Before ``learn`` has provided the step costs,
    ``auto`` is no cap, and requests cost their context alone.
    """

    def __init__(self, setting: str | float | None, units: StepUnits | None = None) -> None:
        self._is_auto = setting == AUTO
        unlimited = self._is_auto or setting is None or setting == NONE
        self.most_tokens = inf if unlimited else float(setting or 0)
        self._request_tokens = 0.0
        self.learn(units)
        self._running = BatchCost()
        self.enter = self._running.enter
        self.leave = self._running.leave
        self.finish = self._running.finish

    def learn(self, units: StepUnits | None) -> None:
        """Update the step costs, which are fitted while a real server runs."""
        if units is None:
            return
        self._request_tokens = units.request_tokens
        if self._is_auto:
            self.most_tokens = CAP_UNITS * units.unit_tokens

    def forget(self) -> None:
        """Forget the learned output lengths, because an idle engine starts afresh."""
        self._running.lengths = OutputLengths()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> float:
        """The cost of what runs."""
        return self._running.tokens(self._request_tokens)

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        """Return whether a request can be admitted now.

        ``without`` are requests assumed not to run.
        """
        rest = self._running.tokens(self._request_tokens, without)
        more = self._running.expected_context(request) + self._request_tokens
        return not rest or rest + more <= self.most_tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class NoCap(LoadCap):
    """The absence of a cap: every request has room, and the running requests are not counted."""

    def __init__(self) -> None:
        super().__init__(NONE)
        self.enter = self.leave = _uncounted
        self.finish = _uncounted_end

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        return True


def _uncounted(request: Request) -> None:
    pass


def _uncounted_end(request: Request, output_tokens: int) -> None:
    pass


def load_cap(setting: str | int | None, costs: CostModel) -> LoadCap:
    """Return the load cap for an engine with these costs.

    Raises UsageError if costs are unknown.
    """
    if setting is None or setting == NONE:
        return NoCap()
    units = step_units(costs)
    if units is None:
        raise UsageError(
            f"load_cap = {setting!r}: needs a timing profile, because the time of a decode "
            "step is not known here"
        )
    return LoadCap(setting, units)
