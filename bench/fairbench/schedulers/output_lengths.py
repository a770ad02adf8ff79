"""Output lengths of finished requests, which predict the lengths of later requests."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.core import Request

# maximum number of idle clients that schedulers and queues remember
MAX_CLIENTS = 10_000
# The search for idle clients is slow, so the state of this many idle clients is deleted together.
BATCH = MAX_CLIENTS // 16

# predicted output length in tokens before any request has finished
PRIOR_OUTPUT_TOKENS = 128.0
RECENT = 32  # number of requests in the moving average of output lengths


class MeanAnswers:
    """The mean output length of a client's requests, or of all requests for a new client."""

    def __init__(self) -> None:
        # ``_of`` maps each client to the number and the total tokens of its outputs. The client
        # with the oldest last output is first.
        self._of: dict[str, tuple[int, int]] = {}
        self._all = (0, 0)

    @property
    def of_all(self) -> float:
        """The mean length of all outputs in tokens, or 0 if no request has finished."""
        requests, tokens = self._all
        return tokens / requests if requests else 0.0

    def expected(self, client: str) -> float:
        """Return the expected length of the client's next output, or 0 before any output."""
        requests, tokens = self._of.get(client, self._all)
        return tokens / requests if requests else 0.0

    def learn(self, client: str, tokens: int) -> None:
        """Record the length in tokens of a finished output."""
        requests, before = self._of.pop(client, (0, 0))
        self._of[client] = (requests + 1, before + tokens)
        if len(self._of) > MAX_CLIENTS:
            del self._of[next(iter(self._of))]
        self._all = (self._all[0] + 1, self._all[1] + tokens)

    def forget(self, client: str) -> None:
        self._of.pop(client, None)

    def expected_total(self, request: Request, produced: int) -> int:
        """Return the expected total output of a request in tokens, at least ``produced`` + 1.

        The expected total output is the mean of the client's finished outputs, or the request's
        ``max_new_tokens`` if the client has no finished output.
        """
        requests, tokens = self._of.get(request.client, (0, 0))
        mean = -(-tokens // requests) if requests else request.max_new_tokens
        return min(max(mean, produced + 1), request.max_new_tokens)


class OutputLengths:
    """Expected output lengths, which are moving averages over each client's finished requests.

    For a client without finished requests, the expected length is the average of all clients'
    outputs. Before any request has finished, the expected length is ``PRIOR_OUTPUT_TOKENS``.
    """

    def __init__(self) -> None:
        self._everybody = _Average(PRIOR_OUTPUT_TOKENS, 0)
        # ``_of_client`` maps clients to average output lengths; the least recently updated client
        # comes first.
        self._of_client: dict[str, _Average] = {}

    def expected(self, client: str) -> float:
        """Return the expected length of the client's next output, in tokens."""
        return self._of_client.get(client, self._everybody).mean

    def learn(self, client: str, tokens: int) -> None:
        """Record the output length of a request that has finished."""
        self._everybody = self._everybody.updated(tokens)
        average = self._of_client.pop(client, None) or _Average(0.0, 0)
        self._of_client[client] = average.updated(tokens)
        if len(self._of_client) > MAX_CLIENTS:
            del self._of_client[next(iter(self._of_client))]


class _Average(NamedTuple):
    """The mean of the first ``RECENT`` values, followed by an exponential moving average."""

    mean: float
    seen: int

    def updated(self, value: float) -> _Average:
        seen = min(self.seen + 1, RECENT)
        return _Average(self.mean + (value - self.mean) / seen, seen)
