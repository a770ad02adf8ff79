"""Load cap: an engine admits requests until its steps are efficient; the rest waits.

With a large KV pool thousands of requests may run at once, no request waits, and a fair order has
no effect. A limit on requests (``max_running_requests``) also solves this, but the right number
depends on their lengths; the load cap limits their cost instead.

A decode step takes a fixed time (launches, reading the weights), and further time for each request
and each token of context. Batches are therefore measured in tokens of context:

    cost = sum over running requests of (prompt + expected output / 2 + request_tokens)

The unit is the cost whose time equals the fixed time (``unit_tokens``). A step of a batch of n
units takes n + 1 times as long as an empty step, of which the fraction n / (n + 1) is useful: the
efficiency. Both numbers come from the engine's own costs, and do not depend on a particular GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from fairbench.compiled import mypyc_attr
from fairbench.core import CostModel, Request
from fairbench.errors import UsageError

PRIOR_OUTPUT_TOKENS = 128.0  # expected of every client before any request has finished
RECENT = 32  # number of requests in a moving average
MAX_CLIENTS = 10_000  # number of clients whose lengths are remembered

# A cost model is sampled at these points: with so many requests, a further one is no longer free,
# and with so much context, the time of a token is measured accurately.
_MANY_REQUESTS, _MUCH_CONTEXT = 4_096, 1 << 20


class StepUnits(NamedTuple):
    """The costs of a decode step, in context tokens that take the same time to read."""

    unit_tokens: float  # tokens for the work that does not depend on the batch
    request_tokens: float  # tokens for one more request, without its context
    context_token_s: float  # the time of one context token


def step_units(costs: CostModel | None) -> StepUnits | None:
    """Return the step units of an engine, or None while its costs are unknown."""
    if costs is None:
        return None
    empty_s = costs.decode_step_s(0, 0)
    token_s = (costs.decode_step_s(0, _MUCH_CONTEXT) - empty_s) / _MUCH_CONTEXT
    many_s, more_s = (costs.decode_step_s(n * _MANY_REQUESTS, 0) for n in (1, 2))
    request_s = (more_s - many_s) / _MANY_REQUESTS
    if empty_s <= 0 or token_s <= 0 or request_s < 0:
        return None
    return StepUnits(empty_s / token_s, request_s / token_s, token_s)


class OutputLengths:
    """Expected output lengths: a moving average over the finished requests of each client.

    A client without finished requests gets the mean of all clients; before any request has
    finished, the value is ``PRIOR_OUTPUT_TOKENS``. A client's limit (``max_new_tokens``) does not
    affect the value.
    """

    def __init__(self) -> None:
        self._everybody = _Average(PRIOR_OUTPUT_TOKENS, 0)
        self._of_client: dict[str, _Average] = {}  # the client heard of longest ago comes first

    def expected(self, client: str) -> float:
        """Return the expected output tokens of the client's next request."""
        return self._of_client.get(client, self._everybody).mean

    def learn(self, client: str, tokens: int) -> None:
        """Record the output length of a finished request."""
        self._everybody = self._everybody.moved(tokens)
        average = self._of_client.pop(client, None) or _Average(0.0, 0)
        self._of_client[client] = average.moved(tokens)
        if len(self._of_client) > MAX_CLIENTS:
            del self._of_client[next(iter(self._of_client))]


class _Average(NamedTuple):
    """The mean of the first ``RECENT`` values, then an exponential average with that memory."""

    mean: float
    seen: int

    def moved(self, value: float) -> _Average:
        seen = min(self.seen + 1, RECENT)
        return _Average(self.mean + (value - self.mean) / seen, seen)


class BatchCost:
    """The cost of the running batch. A request keeps its initial cost, so that sums remain exact.

    Several batches may share the same ``lengths``.
    """

    def __init__(self, lengths: OutputLengths | None = None) -> None:
        self.lengths = lengths or OutputLengths()
        # cost of running requests: prompt + expected output / 2
        self._context: dict[Request, int] = {}
        self._context_tokens = 0

    def __len__(self) -> int:
        return len(self._context)

    def tokens(self, request_tokens: float, without: Iterable[Request] = ()) -> float:
        """Return the cost of the batch in ``StepUnits``, excluding the requests ``without``."""
        gone = [self._context[one] for one in without if one in self._context]
        left = len(self._context) - len(gone)
        return self._context_tokens - sum(gone) + left * request_tokens

    def expected_context(self, request: Request) -> int:
        """Return the expected mean context of a request while it decodes."""
        return round(request.input_tokens + self.lengths.expected(request.client) / 2)

    def enter(self, request: Request) -> None:
        self._context[request] = context = self.expected_context(request)
        self._context_tokens += context

    def leave(self, request: Request) -> None:
        """Remove a request that finished or lost its memory; ignore one that is not running."""
        self._context_tokens -= self._context.pop(request, 0)

    def finish(self, request: Request, output_tokens: int) -> None:
        """Remove a finished request, and learn from its output."""
        self.leave(request)
        if output_tokens:
            self.lengths.learn(request.client, output_tokens)


AUTO = "auto"
NONE = "none"
CAP_UNITS = 5  # units at which 5/6 of a step are useful


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadCap:
    """A limit on the total load of running requests, in addition to the memory limit.

    ``most_tokens`` is never exceeded, except by a single request that runs alone. The engine
    reports requests that it admits (``enter``), that lose their memory (``leave``), and that have
    finished (``finish``).

    ``setting`` is ``auto``, ``none`` or tokens. Before ``learn`` has provided the step costs,
    ``auto`` sets no cap, and the cost of a request is its context alone.
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
        return self._running.tokens(self._request_tokens)

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        """Return whether a request can be admitted now, if those ``without`` did not run."""
        rest = self._running.tokens(self._request_tokens, without)
        more = self._running.expected_context(request) + self._request_tokens
        return not rest or rest + more <= self.most_tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class NoCap(LoadCap):
    """The absence of a cap: every request has room, and the running requests are not counted."""

    def __init__(self) -> None:
        super().__init__(NONE)
        self.enter = self.leave = lambda request: None
        self.finish = lambda request, output_tokens: None

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        return True


def load_cap(setting: str | int | None, costs: CostModel) -> LoadCap:
    """Return the load cap of an engine. Raises UsageError if its costs are unknown."""
    if setting is None or setting == NONE:
        return NoCap()
    units = step_units(costs)
    if units is None:
        raise UsageError(
            f"load_cap = {setting!r}: needs a timing profile, because the time of a decode "
            "step is not known here"
        )
    return LoadCap(setting, units)
