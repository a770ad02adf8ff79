"""Users in closed loops: each starts its next program when the last one has ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import inf

from fairbench.streams import stream
from fairbench.workloads.plan import ClientPlan, ItemSource, ProgramArrival, nth_program
from fairbench.workloads.sampling import sample_gap
from fairbench.workloads.traffic.closed import ClosedArrivals

LEAST_GAP_S = 0.01  # between two beginnings: a refused program ends at once


def users_of(plan: ClientPlan, *, seed: int, source: ItemSource | None = None) -> tuple[User, ...]:
    """Return the users of a client with closed-loop arrivals; none for other clients.

    Args:
        plan: Client whose users are returned.
        seed: Seed of the run.
        source: Real input of programs, or None for sampled lengths.
    """
    if not isinstance(plan.arrivals, ClosedArrivals):
        return ()
    return tuple(
        User(plan, plan.arrivals, number, seed, source) for number in range(plan.arrivals.users)
    )


class User:
    """A closed-loop user, who runs every n-th program of the client.

    Before each program, also the first, the user thinks and waits until the client is present.
    """

    def __init__(
        self,
        plan: ClientPlan,
        loop: ClosedArrivals,
        number: int,
        seed: int,
        source: ItemSource | None,
    ) -> None:
        self._plan, self._loop, self._seed, self._source = plan, loop, seed, source
        self._numbers = count(number, loop.users)
        self._rng = stream(seed, f"{plan.client}/user-{number}")
        self._last_s = -inf
        self._present = (0.0, inf)
        self._later: Iterator[tuple[float, float]] = iter(())
        if plan.presence is not None:
            self._later = plan.presence.intervals(stream(seed, f"{plan.client}/presence"))
            self._present = next(self._later)

    def next(self, now_s: float) -> ProgramArrival | None:
        """Return the user's next program and its start time, None if there is none."""
        ready_s = now_s + sample_gap(self._rng, self._loop.think_s)
        at_s = self._there(max(ready_s, self._last_s + LEAST_GAP_S))
        if at_s >= self._loop.until_s:
            return None
        self._last_s = at_s
        program = nth_program(self._plan, self._seed, next(self._numbers), self._source)
        return ProgramArrival(at_s, program)

    def _there(self, at_s: float) -> float:
        while at_s >= self._present[1]:
            self._present = next(self._later, (inf, inf))
            if self._present[0] == inf:
                return inf
        return max(at_s, self._present[0])
