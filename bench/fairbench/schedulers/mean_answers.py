"""Mean output lengths, per client and over all clients."""

from __future__ import annotations


class MeanAnswers:
    """The mean output of a client's finished requests, or of all clients if the client has none."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, int]] = {}  # requests, tokens
        self._all = (0, 0)

    def expected(self, client: str) -> float:
        """Return the expected tokens of the client's next answer; 0 before any answer has ended."""
        requests, tokens = self._of.get(client, self._all)
        return tokens / requests if requests else 0.0

    def finished(self, client: str, tokens: int) -> None:
        """Record the length of a finished answer, in tokens."""
        requests, before = self._of.get(client, (0, 0))
        self._of[client] = (requests + 1, before + tokens)
        self._all = (self._all[0] + 1, self._all[1] + tokens)

    def forget(self, client: str) -> None:
        """Forget the mean of a client, so that the client starts anew."""
        self._of.pop(client, None)
