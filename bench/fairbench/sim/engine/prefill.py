"""Parts of prefill work in one engine iteration."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.hardware.timing import Chunk
from fairbench.sim.sequence import Sequence


class Prefill(NamedTuple):
    """One sequence's part of an iteration. ``last``: its prompt is complete after it.

    ``tokens`` are computed behind ``cached`` ones, the last ``loaded`` of which come from the
    host's memory.
    """

    sequence: Sequence
    cached: int
    tokens: int
    first: bool
    last: bool
    loaded: int = 0

    @property
    def chunk(self) -> Chunk:
        """What is computed, as timing profiles have it."""
        return self.cached, self.tokens
