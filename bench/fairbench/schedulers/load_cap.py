"""The load cap, which limits the running requests to a batch that decodes efficiently.

If the KV pool is large, thousands of requests may run at once, and a fair queue order has no effect
because no request waits. The right limit on the number of requests (``max_running_requests``)
depends on the requests' lengths, so the load cap limits the cost of all running requests.

A decode step takes a fixed time for kernel launches and for reading the weights, and additional
time for each request and each token of context. The cost of a batch, in tokens of context, is the
sum of prompt + expected output / 2 + ``request_tokens`` over the running requests.

Costs are also given in units (``unit_tokens``): a batch costs one unit if a decode step with this
batch takes twice as long as an empty step. If a batch costs n units, a decode step takes n + 1
times as long as an empty step. The costs and the load cap are computed from the timing profile of
the engine's GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from fairbench.compiled import mypyc_attr
from fairbench.core import CostModel, Request
from fairbench.errors import UsageError
from fairbench.schedulers.output_lengths import OutputLengths

# The time per request and per token is computed from large batches (``_MANY_REQUESTS`` requests,
# ``_MUCH_CONTEXT`` tokens), so that rounding hardly changes it.
_MANY_REQUESTS, _MUCH_CONTEXT = 4_096, 1 << 20


class StepUnits(NamedTuple):
    """The costs of a decode step, converted from seconds to numbers of context tokens."""

    # ``unit_tokens`` is the cost, in context tokens, of a step of an empty batch.
    unit_tokens: float
    request_tokens: float  # cost, in context tokens, of one more request without context
    context_token_s: float  # time in seconds to read one context token


def step_units(costs: CostModel | None) -> StepUnits | None:
    """Return the costs of an engine's decode steps, or None if they are unknown."""
    if costs is None:
        return None
    empty_s = costs.decode_step_s(0, 0)
    token_s = (costs.decode_step_s(0, _MUCH_CONTEXT) - empty_s) / _MUCH_CONTEXT
    many_s, more_s = (costs.decode_step_s(n * _MANY_REQUESTS, 0) for n in (1, 2))
    request_s = (more_s - many_s) / _MANY_REQUESTS
    if empty_s <= 0 or token_s <= 0 or request_s < 0:
        return None
    return StepUnits(empty_s / token_s, request_s / token_s, token_s)


class BatchCost:
    """The cost of a batch of running requests.

    A request's cost is fixed when the request is added. Several batches may share ``lengths``, the
    predictor of output lengths.
    """

    def __init__(self, lengths: OutputLengths | None = None) -> None:
        self.lengths = lengths or OutputLengths()
        # ``_context`` maps each running request to prompt + expected output / 2, in tokens.
        self._context: dict[Request, int] = {}
        self._context_tokens = 0

    def __len__(self) -> int:
        return len(self._context)

    def cost_tokens(self, request_tokens: float, without: Iterable[Request] = ()) -> float:
        """Return the batch's cost in tokens of context, excluding the requests in ``without``."""
        gone = [self._context[one] for one in without if one in self._context]
        left = len(self._context) - len(gone)
        return self._context_tokens - sum(gone) + left * request_tokens

    def expected_context(self, request: Request) -> int:
        return round(request.input_tokens + self.lengths.expected(request.client) / 2)

    def add_running(self, request: Request) -> None:
        self._context[request] = context = self.expected_context(request)
        self._context_tokens += context

    def remove_running(self, request: Request) -> None:
        self._context_tokens -= self._context.pop(request, 0)

    def end_running(self, request: Request, output_tokens: int) -> None:
        self.remove_running(request)
        if output_tokens:
            self.lengths.learn(request.client, output_tokens)


AUTO = "auto"
NONE = "none"
# With ``auto``, the cost of a batch is at most 5 x the fixed time of a step, or 5/6 of the step.
CAP_UNITS = 5


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadCap:
    """A limit on the cost of all running requests, in addition to the memory limit.

    The batch's cost exceeds ``most_tokens`` only if the batch is a single request. The engine
    reports each admitted (``enter``), retracted (``leave``) and finished (``finish``) request.

    ``setting`` is ``auto``, ``none`` or a number of tokens. Until ``learn`` has provided the costs
    of steps, ``auto`` sets no cap, and a request's cost is its context length alone.
    """

    def __init__(self, setting: str | float | None, units: StepUnits | None = None) -> None:
        self._is_auto = setting == AUTO
        unlimited = self._is_auto or setting is None or setting == NONE
        self.most_tokens = inf if unlimited else float(setting or 0)
        self._request_tokens = 0.0
        self.learn(units)
        self._running = BatchCost()
        self.enter = self._running.add_running
        self.leave = self._running.remove_running
        self.finish = self._running.end_running

    def learn(self, units: StepUnits | None) -> None:
        """Update the step costs, which the plugin in a real server measures during operation."""
        if units is None:
            return
        self._request_tokens = units.request_tokens
        if self._is_auto:
            self.most_tokens = CAP_UNITS * units.unit_tokens

    def forget(self) -> None:
        """Delete all output lengths learned so far."""
        self._running.lengths = OutputLengths()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> float:
        return self._running.cost_tokens(self._request_tokens)

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        """Return whether the cap admits the request if the requests in ``without`` do not count."""
        rest = self._running.cost_tokens(self._request_tokens, without)
        more = self._running.expected_context(request) + self._request_tokens
        return not rest or rest + more <= self.most_tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class NoCap(LoadCap):
    """The load cap for the setting ``none``, which admits every request."""

    def __init__(self) -> None:
        super().__init__(NONE)
        self.enter = self.leave = lambda request: None
        self.finish = lambda request, output_tokens: None

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        return True


def load_cap(setting: str | int | None, costs: CostModel) -> LoadCap:
    """Return the load cap that an engine's setting selects.

    Raises UsageError if the costs of steps are unknown.
    """
    if setting is None or setting == NONE:
        return NoCap()
    units = step_units(costs)
    if units is None:
        raise UsageError(
            f"load_cap = {setting!r}: needs a timing profile, because the time of a decode "
            "step is unknown without it"
        )
    return LoadCap(setting, units)
