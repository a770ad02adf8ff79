"""A run of decode steps of an unchanged batch, computed in closed form."""

from __future__ import annotations

from math import sqrt


class DecodeRun:
    """``steps`` steps from ``start_ps``: the first takes ``first_ps``, each ``growth_ps`` more."""

    __slots__ = ("first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps

    def end_ps(self, steps: int) -> int:
        """Return when the first ``steps`` steps are done, in picoseconds."""
        growth = self.growth_ps * (steps * (steps - 1) // 2)
        return self.start_ps + steps * self.first_ps + growth

    def steps_before(self, time_ps: int) -> tuple[int, int]:
        """Return how many steps end strictly before ``time_ps`` and when the last one ends."""
        span, first, growth = time_ps - self.start_ps, self.first_ps, self.growth_ps
        if span <= first:
            return 0, self.start_ps
        if growth:  # the root of growth/2 n^2 + (first - growth/2) n = span, to be put right below
            twice = float(2 * first - growth)
            guess = int((sqrt(twice * twice + 8.0 * growth * span) - twice) / (2 * growth))
        else:
            guess = span // first
        done = guess if guess < self.steps else self.steps
        end_ps = self.end_ps(done)
        while done and end_ps >= time_ps:
            done -= 1
            end_ps -= first + growth * done
        while done < self.steps and (next_ps := end_ps + first + growth * done) < time_ps:
            done, end_ps = done + 1, next_ps
        return done, end_ps

    def advance(self, steps: int, end_ps: int) -> None:
        """Drop the first ``steps`` steps, which ended at ``end_ps``."""
        self.start_ps = end_ps
        self.first_ps += steps * self.growth_ps
        self.steps -= steps
