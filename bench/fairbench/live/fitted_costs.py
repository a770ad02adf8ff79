"""Fitted costs: the time of iterations on a real server, learned while it serves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FORGET = 0.999  # weight of what was seen one iteration earlier
FEW = 8  # iterations below which nothing is fitted


class _Fit:
    """A recent least-squares fit of seconds to a constant and two counts; never below 0 seconds."""

    def __init__(self) -> None:
        self._products: NDArray[np.float64] = np.zeros((3, 3))
        self._targets: NDArray[np.float64] = np.zeros(3)
        self._seen = 0
        self._found: NDArray[np.float64] | None = None  # of what has been seen so far

    def observe(self, first: float, second: float, seconds: float) -> None:
        """Add one iteration to the fit.

        Args:
            first: First count of the iteration.
            second: Second count of the iteration.
            seconds: Measured time of the iteration, in seconds.
        """
        row = np.array([1.0, first, second])
        self._products = FORGET * self._products + np.outer(row, row)
        self._targets = FORGET * self._targets + row * seconds
        self._seen += 1
        self._found = None

    def predict(self, first: float, second: float) -> float:
        """Return the predicted seconds, or 0 after too few observations."""
        if self._seen < FEW:
            return 0.0
        if self._found is None:
            self._found = self._solved()
        return max(0.0, float(self._found @ np.array([1.0, first, second])))

    def _solved(self) -> NDArray[np.float64]:
        """Solve the least-squares fit with scaled columns, whose sizes differ by powers of ten."""
        units = np.sqrt(np.maximum(self._products.diagonal(), 1e-300))
        scaled = self._products / np.outer(units, units)
        found: NDArray[np.float64] = np.linalg.lstsq(scaled, self._targets / units, rcond=1e-10)[0]
        return found / units


class FittedCosts:
    """A ``CostModel`` that is fitted to measured iterations.

    A prefill is linear in its tokens and in the context that they attend to,

    a decode step in its requests and in their context, as in the simulator's timing profiles.
    """

    def __init__(self) -> None:
        self._prefill, self._decode = _Fit(), _Fit()

    def observe_prefill(self, chunks: Iterable[tuple[int, int]], seconds: float) -> None:
        """Add a prefill iteration of ``seconds`` with each prompt's (cached, new) tokens."""
        pairs = list(chunks)
        self._prefill.observe(
            sum(new for _, new in pairs), sum(_attended(*pair) for pair in pairs), seconds
        )

    def observe_decode(self, requests: int, context_tokens: int, seconds: float) -> None:
        """Add a decode step of ``seconds``.

        Args:
            requests: Number of requests in the step.
            context_tokens: Tokens of context of all these requests.
            seconds: Measured time of the step, in seconds.
        """
        self._decode.observe(requests, context_tokens, seconds)

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._prefill.predict(new_tokens, _attended(cached_tokens, new_tokens))

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._decode.predict(requests, context_tokens)


def _attended(cached_tokens: int, new_tokens: int) -> float:
    """Return the number of token pairs in attention."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)
