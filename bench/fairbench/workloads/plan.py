"""A run's clients, and the stream of programs that each sends."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fairbench.streams import stream
from fairbench.targets import NO_TARGETS, Targets
from fairbench.workloads.programs import Item, Program, program_class
from fairbench.workloads.traffic.source import ArrivalSource

PROGRAMS_PER_CLIENT = 10**7
"""Program ids of client i start at i times this."""


class ItemSource(Protocol):
    """Real input, handed out by number: the same seed and number give the same item."""

    def item(self, seed: int, number: int) -> Item: ...


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client of a run: what it runs (``params`` of the program ``kind``) and when.

    ``client`` is its name, ``index`` its place among the ``clients`` clients of the run;
    ``weight`` what it is entitled to, relative to the others, ``targets`` what each of its requests
    was promised, ``service_class`` with whom it shares that ("" if it is in no class).
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


class ProgramArrival(NamedTuple):
    """A program and when it arrives, in seconds from the start of the run."""

    at_s: float
    program: Program


def weights_of(plans: Iterable[ClientPlan]) -> dict[str, float]:
    """The weights by name of those clients whose weight is not 1."""
    return {plan.client: plan.weight for plan in plans if plan.weight != 1}


def expected_programs(plan: ClientPlan) -> float:
    """How many programs a client sends, on average over the seeds."""
    return plan.arrivals.expected_programs()


def program_stream(
    plan: ClientPlan, *, seed: int, source: ItemSource | None = None
) -> Iterator[ProgramArrival]:
    """A client's programs in time order, made as needed.

    Each program has a random stream of its own, so nothing about it depends on scheduling.
    """
    program = program_class(plan.kind)
    for number, (at_s, item) in enumerate(plan.arrivals.arrivals(_arrival_stream(plan, seed))):
        rng = stream(seed, f"{plan.client}/program-{number}")
        if item is None and source is not None:
            place = number * plan.clients + plan.index
            item = source.item(seed, program.pick(plan.params, rng, place))
        program_id = plan.index * PROGRAMS_PER_CLIENT + number
        yield ProgramArrival(at_s, program.build(plan.params, rng, program_id, plan.client, item))


def last_arrival_s(plans: Iterable[ClientPlan], seed: int) -> float:
    """When the last program of all arrives; 0 if none does."""
    return max(
        (plan.arrivals.last_arrival_s(_arrival_stream(plan, seed)) for plan in plans), default=0.0
    )


def _arrival_stream(plan: ClientPlan, seed: int) -> random.Random:
    return stream(seed, f"{plan.client}/arrivals")
