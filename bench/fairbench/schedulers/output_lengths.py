"""Output lengths of finished requests, which predict the lengths of later requests."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.core import Request

# Schedulers and queues remember at most this many idle clients.
MAX_CLIENTS = 10_000
# This many clients are forgotten at a time, so that the choice costs little per client.
BATCH = MAX_CLIENTS // 16

# The predicted output length of every client before any request has finished.
PRIOR_OUTPUT_TOKENS = 128.0
RECENT = 32  # number of requests in the moving average


class MeanAnswers:
    """The mean output of a client's finished requests, or of all clients for a new client."""

    def __init__(self) -> None:
        # ``_of`` maps each client to the number and total tokens of its answers, the client updated
        # least recently first.
        self._of: dict[str, tuple[int, int]] = {}
        self._all = (0, 0)

    @property
    def of_all(self) -> float:
        """The mean length of all answers in tokens, or 0 before any answer has ended."""
        requests, tokens = self._all
        return tokens / requests if requests else 0.0

    def expected(self, client: str) -> float:
        """Return the expected length of the client's next answer; 0 before any answer has ended."""
        requests, tokens = self._of.get(client, self._all)
        return tokens / requests if requests else 0.0

    def learn(self, client: str, tokens: int) -> None:
        """Record the length in tokens of an answer that has finished."""
        requests, before = self._of.pop(client, (0, 0))
        self._of[client] = (requests + 1, before + tokens)
        if len(self._of) > MAX_CLIENTS:
            del self._of[next(iter(self._of))]
        self._all = (self._all[0] + 1, self._all[1] + tokens)

    def forget(self, client: str) -> None:
        """Forget the lengths of a client's answers."""
        self._of.pop(client, None)

    def expected_total(self, request: Request, produced: int) -> int:
        """Return the expected total output of a request: at least one more than ``produced``.

        This is the client's mean, or the request's ``max_new_tokens`` before the client's first
        answer has ended.
        """
        requests, tokens = self._of.get(request.client, (0, 0))
        mean = -(-tokens // requests) if requests else request.max_new_tokens
        return min(max(mean, produced + 1), request.max_new_tokens)


class OutputLengths:
    """Expected output lengths: a moving average over the finished requests of each client.

    For a client without finished requests, the average of all clients is used, or
    ``PRIOR_OUTPUT_TOKENS`` before any request has finished. A request's limit ``max_new_tokens``
    does not matter.
    """

    def __init__(self) -> None:
        self._everybody = _Average(PRIOR_OUTPUT_TOKENS, 0)
        # The client whose average was updated least recently comes first.
        self._of_client: dict[str, _Average] = {}

    def expected(self, client: str) -> float:
        """Return the expected output tokens of the client's next request."""
        return self._of_client.get(client, self._everybody).mean

    def learn(self, client: str, tokens: int) -> None:
        """Record the output length of a request that has finished."""
        self._everybody = self._everybody.updated(tokens)
        average = self._of_client.pop(client, None) or _Average(0.0, 0)
        self._of_client[client] = average.updated(tokens)
        if len(self._of_client) > MAX_CLIENTS:
            del self._of_client[next(iter(self._of_client))]


class _Average(NamedTuple):
    """The mean of the first ``RECENT`` values, and from then on an exponential average."""

    mean: float
    seen: int

    def updated(self, value: float) -> _Average:
        seen = min(self.seen + 1, RECENT)
        return _Average(self.mean + (value - self.mean) / seen, seen)
