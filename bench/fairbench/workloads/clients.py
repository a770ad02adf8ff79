"""Planning of a run's clients: programs, arrivals and latency targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairbench.errors import UsageError
from fairbench.targets import NO_TARGETS, Targets, laid_over, named_targets, parse_targets
from fairbench.tenants import owner_of
from fairbench.workloads.disguises import Disguise
from fairbench.workloads.model import (
    ClientPresence,
    Group,
    Misbehaving,
    Other,
    Scenario,
    WorkloadSpec,
    multiples,
)
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.programs import Value, make_params
from fairbench.workloads.traffic.arrivals import ClosedArrivals, TrafficLoad

if TYPE_CHECKING:
    from fairbench.workloads.model import WorkloadSpec


Number = TypeVar("Number", int, float)


def plan_clients(
    spec: WorkloadSpec,
    scenario: str,
    *,
    dp: int = 1,
    gpu: str = "",
    clients: int | None = None,
    request_rate: float | None = None,
    num_programs: int | None = None,
    burstiness: float = 1.0,
    duration_s: float | None = None,
    weights: Mapping[str, float] | None = None,
    goodput: Mapping[str, str] | None = None,
) -> tuple[ClientPlan, ...]:
    """Plan the clients of a run; the workload file provides values of arguments that are None.

    A client with twice the usual rate sends twice ``num_programs`` programs. If ``request_rate``
    changes the rate by some factor, rates of clients in ``others`` change by this factor.

    Args:
        spec: The workload.
        scenario: The name of the scenario.
        dp: The number of replicas; rates in the workload file are per replica.
        gpu: Id of a timing profile; a workload may define program rates by timing profile.
        clients: The number of clients.
        request_rate: Programs/s of each well-behaved client over the whole cluster.
        num_programs: Programs of each well-behaved client; replaces the workload's duration.
        burstiness: The shape of the Gamma distribution of gaps between programs.
        duration_s: The seconds during which programs arrive.
        weights: The weights of clients by name (default 1).
        goodput: Latency targets that override the workload's targets (see ``client_targets``).

    Raises:
        UsageError: If a value is impossible; the message names the value.
    """
    chosen = spec.scenario(scenario)
    names = spec.name_clients(_client_count(spec, scenario, clients))
    rate = chosen.rate_on(gpu) * _check_positive("dp", dp) if request_rate is None else request_rate
    end_s = spec.duration_s if num_programs is None else inf
    if duration_s is not None:
        end_s = _check_positive("duration_s", duration_s)
    load = TrafficLoad(
        0,
        _check_positive("request_rate", rate, infinite=True),
        _check_positive("burstiness", burstiness, infinite=True),
        num_programs if num_programs is None else _check_positive("num_programs", num_programs),
        end_s,
        request_rate is not None,
    )
    traffic = spec.traffic()
    if rate == inf and num_programs is None:
        raise UsageError(
            "request_rate = inf: needs num_programs, which limits the number of programs"
        )
    shared = {**spec.params, **chosen.params}
    params = make_params(spec.program, shared, spec.name)
    targets = client_targets(spec, goodput or {}, names)
    classes = class_of_client(spec)
    owners = spec.client_owners or {}
    plans = [
        ClientPlan(
            *(index, len(names), name, False, spec.program, params),
            traffic.usual(load._replace(client=index)),
            weight=(weights or {}).get(name, 1.0),
            targets=targets[name],
            service_class=classes.get(name, ""),
            owner=owners.get(name, owner_of(name)),
            presence=_checked_presence(chosen.presence, load),
        )
        for index, name in enumerate(names)
    ]
    run = _Run(spec, chosen, load, shared)
    for index, changes in (*run.sized(len(names)), *run.misbehaving_arrivals(), *run.others()):
        plans[index] = replace(plans[index], **changes)
    # Disguises are added last, because a disguised client may copy the prompts of any client.
    for wrong in chosen.misbehaving:
        for index in wrong.numbers:
            plans[index] = _with_disguise(plans[index], wrong, plans)
    return tuple(plans)


Changed = Iterator[tuple[int, dict[str, Any]]]
"""Pairs of a client's number and the fields to change in its ``ClientPlan``."""


class _Run(NamedTuple):
    """The values that determine which programs a run's clients send, and when."""

    spec: WorkloadSpec
    scenario: Scenario
    load: TrafficLoad
    params: dict[str, Value]

    def sized(self, count: int) -> Changed:
        traffic = self.spec.traffic()
        for index, multiple in _sizes_of_plain_clients(self.scenario, count):
            load = _load_of_size(self.load._replace(client=index), multiple)
            yield index, {"arrivals": traffic.usual(load)}

    def misbehaving_arrivals(self) -> Changed:
        for wrong in self.scenario.misbehaving:
            traffic = self.spec.traffic(wrong.arrivals)
            own = {**self.params, **wrong.params}
            changes = self._group(wrong) | {
                "misbehaving": True,
                "params": make_params(self.spec.program, own, self.spec.name),
            }
            for index in wrong.numbers:
                load = self.load._replace(client=index)
                arrivals = traffic.misbehaving(load, wrong.rate_multiple, wrong.until_fraction)
                yield index, changes | {"arrivals": arrivals}

    def others(self) -> Changed:
        for other in self.scenario.others or ():
            traffic = self.spec.traffic(other.arrivals)
            changes = self._group(other) | {
                "kind": other.program,
                "params": make_params(other.program, other.params, self.spec.name),
            }
            rate = other.rate * self.load.programs_per_s / self.scenario.rate
            load = self.load._replace(programs_per_s=rate)
            sizes = multiples(other.sizes, len(other.numbers))
            for index, multiple in zip(other.numbers, sizes, strict=True):
                arrivals = traffic.usual(_load_of_size(load._replace(client=index), multiple))
                yield index, changes | {"arrivals": arrivals}

    def _group(self, group: Misbehaving | Other) -> dict[str, Any]:
        return {"presence": _checked_presence(group.presence or self.scenario.presence, self.load)}


def _sizes_of_plain_clients(scenario: Scenario, count: int) -> list[tuple[int, float]]:
    """Return the number and the relative rate of each well-behaved client; [] for equal rates."""
    if scenario.sizes is None:
        return []
    groups: tuple[Group, ...] = (*scenario.misbehaving, *(scenario.others or ()))
    special = {number for group in groups for number in group.numbers}
    plain = [number for number in range(count) if number not in special]
    try:
        return list(zip(plain, scenario.sizes.multiples(len(plain)), strict=True))
    except ValueError as error:
        raise UsageError(f"clients = {count}: {error}") from None


def _load_of_size(load: TrafficLoad, multiple: float) -> TrafficLoad:
    """Return the load of a client that sends ``multiple`` times as much as the average client."""
    if multiple == 1:
        return load
    wanted = load.num_programs
    return load._replace(
        programs_per_s=load.programs_per_s * multiple,
        num_programs=None if wanted is None else max(1, round(wanted * multiple)),
    )


def _checked_presence(presence: ClientPresence | None, load: TrafficLoad) -> ClientPresence | None:
    if presence is not None and load.until_s == inf:
        raise UsageError(
            "num_programs: not supported for clients that come and go; give duration instead"
        )
    return presence


def _with_disguise(plan: ClientPlan, wrong: Misbehaving, plans: Sequence[ClientPlan]) -> ClientPlan:
    disguise = None
    copied = None if wrong.padding_of is None else plans[wrong.padding_of]
    closed = any(isinstance(one.arrivals, ClosedArrivals) for one in (copied, plan) if one)
    waits = wrong.in_flight or wrong.reaction
    disguised = wrong.padding_tokens or wrong.max_new_multiple or wrong.output_multiple
    if closed and (disguised or waits):
        raise UsageError(
            "misbehaving: padding_tokens, max_new_multiple, output_multiple, in_flight and "
            "reaction cannot be combined with closed arrivals"
        )
    if wrong.in_flight and wrong.reaction:
        raise UsageError(
            "misbehaving: in_flight and reaction both set the start of a program; give only "
            "one of them"
        )
    if disguised:
        disguise = Disguise(
            plan.owner,
            wrong.padding_tokens or 0,
            wrong.max_new_multiple or 1.0,
            wrong.output_multiple or 1,
            bool(wrong.padding_fresh),
            wrong.keep_alive or 0,
        )
    targets = plan.targets
    if wrong.targets:
        targets = laid_over(targets, parse_targets(wrong.targets, "misbehaving.targets"))
    return replace(
        plan,
        disguise=disguise,
        copied=copied if disguise else None,
        in_flight=wrong.in_flight,
        reaction=wrong.reaction,
        targets=targets,
        weight=plan.weight if wrong.weight is None else wrong.weight,
    )


def _client_count(spec: WorkloadSpec, scenario: str, clients: int | None) -> int:
    chosen = spec.scenario(scenario)
    misbehaving = {number for one in chosen.misbehaving for number in one.numbers}
    listed = misbehaving.union(*(one.numbers for one in chosen.others or ()))
    listed |= {one.padding_of for one in chosen.misbehaving if one.padding_of is not None}
    needed = max(listed, default=0) + 1
    count = spec.client_count(scenario) if clients is None else clients
    if count < needed:
        raise UsageError(
            f"clients = {count}: must be at least {needed} for scenario {scenario} of "
            f"{spec.name}"
            + (f" (client {needed - 1} is heavy)" if needed - 1 in misbehaving else "")
        )
    return count


def _check_positive(field: str, value: Number, *, infinite: bool = False) -> Number:
    if isnan(value) or value <= 0 or (value == inf and not infinite):
        raise UsageError(f"{field} = {value}: must be above 0" + (" or inf" if infinite else ""))
    return value


def class_of_client(spec: WorkloadSpec) -> dict[str, str]:
    """Return the class of each client that belongs to a class, by client name."""
    classes = spec.classes or {}
    return {client: name for name, one in classes.items() for client in one.clients}


def client_targets(
    spec: WorkloadSpec, given: Mapping[str, str], names: Sequence[str]
) -> dict[str, Targets]:
    """Return the latency targets of each client of a run, by client name.

    Targets in ``given`` override the targets of the client's class, which override the targets of
    the workload. Raises UsageError for an unknown name or an invalid target.
    """
    if not (given or spec.targets or spec.classes):
        return dict.fromkeys(names, NO_TARGETS)
    classes = class_of_client(spec)
    for_all = parse_targets(spec.targets or {}, "targets")
    of_class = {
        name: laid_over(for_all, parse_targets(one.targets, f"classes.{name}.targets"))
        for name, one in (spec.classes or {}).items()
    }
    usual = {name: of_class.get(classes.get(name, ""), for_all) for name in names}
    return named_targets(given, names, classes, usual)
