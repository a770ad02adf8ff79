"""From a workload and the command line to what each client sends, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any, Protocol

from fairbench.errors import UsageError
from fairbench.workloads.arrivals import Rate, arrival_times, stream
from fairbench.workloads.model import Misbehaving, WorkloadSpec, make_params
from fairbench.workloads.programs import Item, Program, program_class

PROGRAMS_PER_CLIENT = 10**7
"""Program ids of client i start at i times this."""


class ItemSource(Protocol):
    """Real input, handed out by number: the same seed and number give the same item."""

    def item(self, seed: int, number: int) -> Item: ...


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client of a run: what it runs (``params`` of the program ``kind``) and how often.

    It stops after ``num_programs`` programs (None: no limit) and at ``until_s``, whichever is
    first. ``clients`` is the number of clients in the run.
    """

    index: int
    clients: int
    client: str
    misbehaving: bool
    kind: str
    params: Any
    rates: tuple[Rate, ...]
    burstiness: float
    num_programs: int | None
    until_s: float


def plan_clients(
    spec: WorkloadSpec,
    scenario: str,
    *,
    dp: int = 1,
    clients: int | None = None,
    request_rate: float | None = None,
    num_programs: int | None = None,
    burstiness: float = 1.0,
    duration_s: float | None = None,
) -> tuple[ClientPlan, ...]:
    """The clients of a run; None is the workload's own value.

    ``request_rate`` is in programs/s of each well-behaved client over the whole cluster; the
    workload's own rate is per GPU, so it is multiplied by ``dp``. The rates of clients that run
    another program change as it does. A client at m times the rate
    sends m times ``num_programs``; that count lifts the workload's own duration.
    Raises UsageError naming the value that is impossible.
    """
    chosen = spec.scenario(scenario)
    count = _client_count(spec, scenario, clients)
    rate = chosen.rate * _positive("dp", dp) if request_rate is None else request_rate
    _positive("request_rate", rate, infinite=True)
    _positive("burstiness", burstiness)
    if num_programs is not None:
        _positive("num_programs", num_programs)
    if rate == inf and num_programs is None:
        raise UsageError("request_rate = inf: needs num_programs, or there is no end to them")
    if duration_s is not None:
        until_s = _positive("duration_s", duration_s)
    else:
        until_s = spec.duration_s if num_programs is None else inf
    well_behaved = ClientPlan(
        index=0,
        clients=count,
        client="client-0",
        misbehaving=False,
        kind=spec.program,
        params=make_params(spec.program, {**spec.params, **chosen.params}, spec.name),
        rates=(Rate(0.0, rate),),
        burstiness=burstiness,
        num_programs=num_programs,
        until_s=until_s,
    )
    plans = [replace(well_behaved, index=i, client=f"client-{i}") for i in range(count)]
    for wrong in chosen.misbehaving:
        params = {**spec.params, **chosen.params, **wrong.params}
        plans[wrong.client] = _misbehave(
            plans[wrong.client], wrong, make_params(spec.program, params, spec.name)
        )
    for other in chosen.others or ():
        plans[other.client] = replace(
            plans[other.client],
            kind=other.program,
            params=make_params(other.program, other.params, spec.name),
            rates=(Rate(0.0, other.rate * rate / chosen.rate),),
        )
    return tuple(plans)


def expected_programs(plan: ClientPlan) -> float:
    """How many programs a client sends, on average over the seeds."""
    ends = [rate.start_s for rate in plan.rates[1:]] + [plan.until_s]
    arriving = sum(
        rate.programs_per_s * max(0.0, min(end_s, plan.until_s) - rate.start_s)
        for rate, end_s in zip(plan.rates, ends, strict=True)
    )
    return arriving if plan.num_programs is None else min(arriving, plan.num_programs)


def program_stream(
    plan: ClientPlan, *, seed: int, source: ItemSource | None = None
) -> Iterator[tuple[float, Program]]:
    """A client's programs with their arrival times in seconds, in time order, made as needed.

    Each program has a random stream of its own, so nothing about it depends on scheduling.
    """
    program = program_class(plan.kind)
    for number, arrival_s in enumerate(_arrivals(plan, seed)):
        rng = stream(seed, f"{plan.client}/program-{number}")
        item = source.item(seed, number * plan.clients + plan.index) if source else None
        program_id = plan.index * PROGRAMS_PER_CLIENT + number
        yield arrival_s, program.build(plan.params, rng, program_id, plan.client, item)


def last_arrival_s(plans: Iterable[ClientPlan], seed: int) -> float:
    """When the last program of all arrives; 0 if none does."""
    return max((arrival_s for plan in plans for arrival_s in _arrivals(plan, seed)), default=0.0)


def _arrivals(plan: ClientPlan, seed: int) -> Iterator[float]:
    times = arrival_times(stream(seed, f"{plan.client}/arrivals"), plan.rates, plan.burstiness)
    for number, arrival_s in enumerate(times):
        if number == plan.num_programs or arrival_s >= plan.until_s:
            return
        yield arrival_s


def _misbehave(plan: ClientPlan, wrong: Misbehaving, params: Any) -> ClientPlan:
    """The plan of a client that would be well-behaved, turned into a misbehaver's."""
    rate, wanted = plan.rates[0].programs_per_s, plan.num_programs
    multiple, fraction = wrong.rate_multiple, wrong.until_fraction
    rates: tuple[Rate, ...] = (Rate(0.0, rate * multiple),)
    work = multiple
    if fraction is not None:
        work = fraction * multiple + (1 - fraction)
        if rate < inf:
            length_s = plan.until_s if wanted is None else min(plan.until_s, wanted / rate)
            rates = (*rates, Rate(fraction * length_s, rate))
    return replace(
        plan,
        misbehaving=True,
        params=params,
        rates=rates,
        num_programs=None if wanted is None else max(1, round(wanted * work)),
    )


def _client_count(spec: WorkloadSpec, scenario: str, clients: int | None) -> int:
    chosen = spec.scenario(scenario)
    misbehaving = [one.client for one in chosen.misbehaving]
    listed = misbehaving + [one.client for one in chosen.others or ()]
    needed = max(listed, default=0) + 1
    count = spec.clients if clients is None else clients
    if count < needed:
        raise UsageError(
            f"clients = {count}: scenario {scenario} of {spec.name} needs at least {needed}"
            + (f" (client {needed - 1} misbehaves)" if needed - 1 in misbehaving else "")
        )
    return count


def _positive(field: str, value: float, *, infinite: bool = False) -> float:
    if isnan(value) or value <= 0 or (value == inf and not infinite):
        raise UsageError(f"{field} = {value}: must be above 0" + (" or inf" if infinite else ""))
    return value
