"""The time of decode steps for each request of a batch, without looping over requests."""

from __future__ import annotations

from typing import TypeAlias

Sums: TypeAlias = tuple[float, float, float]
"""A ``DecodeTime`` at some step: ``each``, ``read`` and ``numbered``."""

NO_TIME: Sums = (0.0, 0.0, 0.0)


class DecodeTime:
    """Sums over the steps of a batch, in picoseconds.

    ``each`` is every request's part of the fixed cost, ``read`` the time that one token of context
    took, ``numbered`` the latter times the number of the step. A request whose context is ``base +
    n`` in step n has cost ``each + base * read + numbered``, of what was added since it joined.
    """

    __slots__ = ("each", "numbered", "read")

    def __init__(self) -> None:
        self.each = self.read = self.numbered = 0.0

    def add(
        self, took_ps: int, fixed_ps: int, requests: int, context: int, first: int, steps: int
    ) -> None:
        """Add ``steps`` steps, from step number ``first`` on.

        ``context`` is the context of all requests in the first step. ``fixed_ps`` is the part of
        the time that is not reading.
        """
        grown = steps * (steps - 1) // 2
        token_ps = (took_ps - fixed_ps) / (context * steps + requests * grown)
        self.each += fixed_ps / requests
        self.read += token_ps * steps
        self.numbered += token_ps * (first * steps + grown)

    def sums(self) -> Sums:
        """Return the current sums."""
        return self.each, self.read, self.numbered

    def of(self, base: int, joined: Sums) -> float:
        """Return the cost (ps) of a request that joined when the sums were ``joined``."""
        each, read, numbered = joined
        return self.each - each + ((self.read - read) * base + self.numbered - numbered)
