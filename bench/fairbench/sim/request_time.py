"""What decode steps took of each request of a batch, without a walk over it."""

from __future__ import annotations

from typing import NamedTuple


class DecodeTime(NamedTuple):
    """Sums over the steps of a batch, in picoseconds.

    ``each`` is every request's part of the fixed cost, ``read`` the time that one token of context
    took, ``numbered`` the latter times the number of the step. A request whose context is
    ``base + n`` in step n has cost ``each + base * read + numbered``, of what was added since it
    joined.
    """

    each: float = 0.0
    read: float = 0.0
    numbered: float = 0.0

    def after(
        self, took_ps: int, fixed_ps: int, *, requests: int, context: int, first: int, steps: int
    ) -> DecodeTime:
        """With so many steps more, from number ``first`` on.

        ``context`` is that of all requests in the first; ``fixed_ps`` of the time is not reading.
        """
        grown = steps * (steps - 1) // 2
        token_ps = (took_ps - fixed_ps) / (context * steps + requests * grown)
        return DecodeTime(
            self.each + fixed_ps / requests,
            self.read + token_ps * steps,
            self.numbered + token_ps * (first * steps + grown),
        )

    def of(self, base: int, joined: DecodeTime) -> float:
        """What a request has cost that joined when the sums were ``joined``."""
        read = (self.read - joined.read) * base + self.numbered - joined.numbered
        return self.each - joined.each + read


NO_TIME = DecodeTime()
