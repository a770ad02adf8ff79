"""Batch cost: how expensive the running batch of a worker is, and when it is efficient enough.

A decode step takes a fixed time, however little runs (launches, reading the weights), and beyond it
a time for each request and each token of context. So batches are weighed in tokens of context:

    cost = sum over what runs of (prompt + expected output / 2 + request_tokens)

and the unit is the cost at which that time is as long as the fixed one (``unit_tokens``). A batch
of n units takes (n + 1) times as long a step as an empty one, of which n / (n + 1) is useful: the
efficiency. Both numbers are of the engine's own costs, and nothing here of any one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairbench.core import CostModel, Request

PRIOR_OUTPUT_TOKENS = 128.0  # expected of anybody before anything has finished
RECENT = 32  # requests in a moving average
MAX_CLIENTS = 10_000  # whose lengths are remembered

# A cost model is asked at these, where a request has stopped to be free for its weights are read
# anyway, and where a token of context is measured well.
_MANY_REQUESTS, _MUCH_CONTEXT = 4_096, 1 << 20


class StepUnits(NamedTuple):
    """The costs of a decode step, in context tokens that take the same time to read."""

    unit_tokens: float  # on what does not depend on the batch
    request_tokens: float  # on one more request, its context apart
    context_token_s: float  # the time of one such token


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

    Of a client of whom nothing has finished, that of everybody; before anything has,
    ``PRIOR_OUTPUT_TOKENS``. What a client allows (``max_new_tokens``) does not count.
    """

    def __init__(self) -> None:
        self._everybody = _Average(PRIOR_OUTPUT_TOKENS, 0)
        self._of_client: dict[str, _Average] = {}  # the longest unheard of first

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
    """The cost of the running batch. A request keeps its initial cost, so that sums are exact.

    Several may learn the same ``lengths``.
    """

    def __init__(self, lengths: OutputLengths | None = None) -> None:
        self.lengths = lengths or OutputLengths()
        self._context: dict[Request, int] = {}  # of what runs: prompt + expected output / 2
        self._context_tokens = 0

    def __len__(self) -> int:
        return len(self._context)

    def tokens(self, request_tokens: float, without: Iterable[Request] = ()) -> float:
        """Return the cost of the present setup if some requests were not sent.

        ``request_tokens`` is defined in ``StepUnits``.
        """
        gone = [self._context[one] for one in without if one in self._context]
        left = len(self._context) - len(gone)
        return self._context_tokens - sum(gone) + left * request_tokens

    def expected_context(self, request: Request) -> int:
        """Return the expected mean context of a request while it decodes."""
        return round(request.input_tokens + self.lengths.expected(request.client) / 2)

    def enter(self, request: Request) -> None:
        """Add an admitted request."""
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
