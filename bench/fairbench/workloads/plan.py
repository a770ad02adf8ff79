"""The programs that each client of a run sends, in open or closed loops."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import inf
from typing import Any, NamedTuple, Protocol

from fairbench.streams import stream
from fairbench.targets import NO_TARGETS, Targets
from fairbench.tenants import named_below
from fairbench.workloads.disguises import Disguise, latest_program
from fairbench.workloads.items import Item
from fairbench.workloads.model import ClientPresence
from fairbench.workloads.programs import program_class
from fairbench.workloads.programs.base import Job, Program, sample_gap
from fairbench.workloads.traffic.arrivals import Arrival, ArrivalSource, ClosedArrivals

PROGRAMS_PER_CLIENT = 10**7
"""The maximum number of programs of a client; client i's program ids begin at i x this number."""
MADE_AHEAD = 8


class ItemSource(Protocol):
    """A source of real input, such as a data set; ``seed`` and ``number`` determine the item."""

    def item(self, seed: int, number: int) -> Item: ...


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The plan of a client: the ``kind`` and ``params`` of its programs, and its arrival times.

    ``index`` is the position of ``client`` among the ``clients`` clients of the run. ``weight`` is
    the client's fair share relative to other clients. ``targets`` are the latencies promised to
    each of the client's requests. ``service_class`` names the class that defines the targets, or is
    "" if no class defines them. ``owner`` is by default the outermost tenant in the client's name,
    or the client itself. ``presence`` defines when the client is present; None means always.

    ``disguise`` adds padding or longer answers to the client's programs. If ``copied`` is the plan
    of another client, the padding begins like that client's latest program. ``in_flight`` limits
    the client's running programs. ``reaction`` names a function that decides, when a request of the
    client ends, whether all waiting programs of the client start.
    """

    index: int
    clients: int
    client: str
    misbehaving: bool
    kind: str
    params: Any
    arrivals: ArrivalSource
    weight: float = 1.0
    targets: Targets = NO_TARGETS
    service_class: str = ""
    owner: str = ""
    disguise: Disguise | None = None
    copied: ClientPlan | None = None
    in_flight: int | None = None
    reaction: str | None = None
    presence: ClientPresence | None = None


class ProgramArrival(NamedTuple):
    """A program and its arrival time, in seconds from the start of the run."""

    at_s: float
    program: Job


def weights_of(plans: Iterable[ClientPlan]) -> dict[str, float]:
    """Return the weights that differ from 1, by client name."""
    return {plan.client: plan.weight for plan in plans if plan.weight != 1}


def tenant_paths_of(plans: Iterable[ClientPlan]) -> dict[str, str]:
    """Return the tenant path of each client whose name does not contain the path, by name."""
    places = named_below({plan.client: plan.owner for plan in plans})
    return {client: place for client, place in places.items() if place != client}


def expected_programs(plan: ClientPlan, before_s: float = inf) -> float:
    """Return a client's expected number of programs before a time, averaged over seeds."""
    if plan.presence is None:
        return plan.arrivals.expected_programs(before_s)
    return plan.presence.expected_programs(plan.arrivals, before_s)


def program_stream(
    plan: ClientPlan, *, seed: int, source: ItemSource | None = None
) -> Iterator[ProgramArrival]:
    """Yield a client's programs in order of time, created on demand.

    Each program has a random stream of its own, so its content does not depend on the scheduler.
    """
    if plan.disguise is None:
        for at_s, program in _undisguised_programs(plan, seed, source):
            yield ProgramArrival(at_s, program)
        return
    others = latest_program(_undisguised_programs(plan.copied, seed, source) if plan.copied else ())
    for at_s, program in _undisguised_programs(plan, seed, source):
        yield ProgramArrival(at_s, plan.disguise.dress(program, others.program_at(at_s)))


def made_ahead(programs: Iterator[ProgramArrival]) -> Iterator[ProgramArrival]:
    """Yield programs in order, but create ``MADE_AHEAD`` programs at a time.

    Creating several programs at once keeps code and data in the processor's caches.
    """
    while some := list(islice(programs, MADE_AHEAD)):
        yield from some


def _undisguised_programs(
    plan: ClientPlan, seed: int, source: ItemSource | None
) -> Iterator[tuple[float, Program]]:
    for number, (at_s, item) in enumerate(_arrivals(plan, seed)):
        yield at_s, nth_program(plan, seed, number, source, item)


def nth_program(
    plan: ClientPlan, seed: int, number: int, source: ItemSource | None, item: Item | None = None
) -> Program:
    """Return a client's program with the input ``item`` or, if None, with input from ``source``."""
    program = program_class(plan.kind)
    rng = stream(seed, f"{plan.client}/program-{number}")
    if item is None and source is not None:
        place = number * plan.clients + plan.index
        item = source.item(seed, program.pick(plan.params, rng, place))
    program_id = plan.index * PROGRAMS_PER_CLIENT + number
    made = program.build(plan.params, rng, program_id, plan.client, item)
    if item is not None:
        made.turn = item.turn
    return made


def last_arrival_s(plans: Iterable[ClientPlan], seed: int) -> float:
    """Return the arrival time of the last program in seconds; 0 if there are no programs."""
    last_s = (
        plan.arrivals.last_arrival_s(_arrival_stream(plan, seed))
        if plan.presence is None
        else max((arrival.at_s for arrival in _arrivals(plan, seed)), default=0.0)
        for plan in plans
    )
    return max(last_s, default=0.0)


def _arrivals(plan: ClientPlan, seed: int) -> Iterator[Arrival]:
    arrivals = plan.arrivals.arrivals(_arrival_stream(plan, seed))
    if plan.presence is None:
        return arrivals
    return plan.presence.kept(arrivals, stream(seed, f"{plan.client}/presence"))


def _arrival_stream(plan: ClientPlan, seed: int) -> random.Random:
    return stream(seed, f"{plan.client}/arrivals")


# A user waits at least 10 ms between two programs, so that a user whose programs are refused does
# not start programs in an endless loop.
LEAST_GAP_S = 0.01


def waits_for_earlier(plan: ClientPlan) -> bool:
    """Return whether a program waits until earlier programs or requests of the client end."""
    closed = isinstance(plan.arrivals, ClosedArrivals)
    return closed or plan.in_flight is not None or plan.reaction is not None


def users_of(plan: ClientPlan, *, seed: int, source: ItemSource | None = None) -> tuple[User, ...]:
    """Return the users of a client with closed-loop arrivals; () for any other client."""
    if not isinstance(plan.arrivals, ClosedArrivals):
        return ()
    return tuple(
        User(plan, plan.arrivals, number, seed, source) for number in range(plan.arrivals.users)
    )


class User:
    """A closed-loop user, who runs every n-th program of a client with n users.

    Before each program, including the first, the user pauses for a think time. The user then waits
    until the client is active.
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
        """Return the user's next program and its start time, or None after the last program."""
        ready_s = now_s + sample_gap(self._rng, self._loop.think_s)
        at_s = max(ready_s, self._last_s + LEAST_GAP_S)
        while at_s >= self._present[1] and self._present[0] < inf:
            self._present = next(self._later, (inf, inf))
        at_s = max(at_s, self._present[0])
        if at_s >= self._loop.until_s:
            return None
        self._last_s = at_s
        program = nth_program(self._plan, self._seed, next(self._numbers), self._source)
        return ProgramArrival(at_s, program)
