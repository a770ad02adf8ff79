"""Iterations of an engine as columns, to which a timing profile is fitted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

MOST_CONTEXT = 400_000  # tokens of decode context in an iteration


class Iterations(NamedTuple):
    """Columns of equal length. Sequences of one kind in an iteration are equal.

    Attributes:
        prefills: Sequences that prefill.
        new: New tokens of each of them.
        prefix: Cached tokens of each of them.
        decodes: Sequences that decode.
        context: Tokens of context of each of them.
    """

    prefills: Column
    new: Column
    prefix: Column
    decodes: Column
    context: Column

    @property
    def tokens(self) -> Column:
        """The tokens that pass through the linear layers."""
        return self.prefills * self.new + self.decodes

    @property
    def attended(self) -> Column:
        """The pairs of a new token and an attended token, for one prefilling sequence."""
        return self.new * (self.prefix + (self.new + 1) / 2)

    def rows(self, chosen: slice) -> Iterations:
        """Return some of the iterations."""
        return Iterations(*(column[chosen] for column in self))


def drawn(count: int, rng: np.random.Generator, most_context: int = MOST_CONTEXT) -> Iterations:
    """Draw iterations: a third each that prefill, decode, and do both.

    Lengths and numbers are spread evenly on a logarithmic scale. ``most_context`` limits the
    context of all decoding sequences together.

    Args:
        count: Number of iterations.
        rng: Random generator.
        most_context: Limit on the context of all decoding sequences of an iteration, in tokens.

    Returns:
        Iterations, with columns of shape (count,).
    """

    def between(low: int, high: int) -> NDArray[np.int64]:
        return np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(np.int64)

    kind = rng.integers(0, 3, count)
    prefills = np.where(kind == 1, 0, between(1, 9))
    new = np.maximum(1, between(16, 8193) // np.maximum(1, prefills))
    prefix = np.where(rng.random(count) < 0.5, 0, between(16, 32_769))
    decodes = np.where(kind == 0, 0, between(1, 401))
    most = np.maximum(1, most_context // np.maximum(1, decodes))
    context = np.minimum(between(64, 16_385), most)
    columns = (
        prefills, new * (prefills > 0), prefix * (prefills > 0),
        decodes, context * (decodes > 0),
    )  # fmt: skip
    return Iterations(*(column.astype(np.float64) for column in columns))
