"""A run of decode steps of one unchanged batch, in closed form."""

from __future__ import annotations

from math import isqrt


class DecodeRun:
    """``steps`` steps from ``start_ps``, the first of ``first_ps``, each ``growth_ps`` longer."""

    __slots__ = ("first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps

    def end_ps(self, steps: int) -> int:
        """When the first ``steps`` steps are done."""
        growth = self.growth_ps * (steps * (steps - 1) // 2)
        return self.start_ps + steps * self.first_ps + growth

    def steps_before(self, time_ps: int) -> int:
        """How many steps end strictly before ``time_ps``."""
        span = time_ps - self.start_ps
        if span <= self.first_ps:
            return 0
        twice, growth = 2 * self.first_ps - self.growth_ps, self.growth_ps
        if growth:  # the root of growth/2 n^2 + (first - growth/2) n = span
            guess = (isqrt(twice * twice + 8 * growth * span) - twice) // (2 * growth)
        else:
            guess = span // self.first_ps
        done = guess if guess < self.steps else self.steps
        while done and self.end_ps(done) >= time_ps:
            done -= 1
        while done < self.steps and self.end_ps(done + 1) < time_ps:
            done += 1
        return done

    def advance(self, steps: int, end_ps: int) -> None:
        """Drop the first ``steps`` steps, which are done, as ``end_ps`` says of them."""
        self.start_ps = end_ps
        self.first_ps += steps * self.growth_ps
        self.steps -= steps
