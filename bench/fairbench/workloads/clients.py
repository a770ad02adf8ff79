"""The clients of a run, from a workload and the command line: what each sends, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan
from typing import TypeVar

from fairbench.errors import UsageError
from fairbench.workloads.client_targets import class_of_client, client_targets
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.program_params import make_params
from fairbench.workloads.traffic.source import Load

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
    """The clients of a run; None is the workload's own value.

    ``request_rate`` is in programs/s of each well-behaved client over the whole cluster; the
    workload's own rate is per GPU, so it is multiplied by ``dp``; ``gpu`` is the id of a timing
    profile, for which a workload may have a rate of its own. The rates of clients that run
    another program change as it does. A client at m times the rate
    sends m times ``num_programs``; that count lifts the workload's own duration. ``weights`` are
    by name, 1 where there is none; ``goodput`` are targets laid over the workload's
    (``client_targets``).
    Raises UsageError naming the value that is impossible.
    """
    chosen = spec.scenario(scenario)
    names = spec.name_clients(_client_count(spec, scenario, clients))
    rate = chosen.rate_on(gpu) * _positive("dp", dp) if request_rate is None else request_rate
    load = Load(
        0,
        _positive("request_rate", rate, infinite=True),
        _positive("burstiness", burstiness),
        num_programs if num_programs is None else _positive("num_programs", num_programs),
        _end_s(spec, num_programs, duration_s),
        request_rate is not None,
    )
    traffic = spec.traffic()
    if rate == inf and num_programs is None:
        raise UsageError("request_rate = inf: needs num_programs, or there is no end to them")
    shared = {**spec.params, **chosen.params}
    params = make_params(spec.program, shared, spec.name)
    targets = client_targets(spec, goodput or {}, names)
    classes = class_of_client(spec)
    plans = [
        ClientPlan(
            *(index, len(names), name, False, spec.program, params),
            traffic.usual(load._replace(client=index)),
            weight=(weights or {}).get(name, 1.0),
            targets=targets[name],
            service_class=classes.get(name, ""),
        )
        for index, name in enumerate(names)
    ]
    for wrong in chosen.misbehaving:
        plans[wrong.client] = replace(
            plans[wrong.client],
            misbehaving=True,
            params=make_params(spec.program, {**shared, **wrong.params}, spec.name),
            arrivals=spec.traffic(wrong.arrivals).misbehaving(
                load._replace(client=wrong.client), wrong.rate_multiple, wrong.until_fraction
            ),
        )
    for other in chosen.others or ():
        plans[other.client] = replace(
            plans[other.client],
            kind=other.program,
            params=make_params(other.program, other.params, spec.name),
            arrivals=spec.traffic(other.arrivals).usual(
                load._replace(client=other.client, programs_per_s=other.rate * rate / chosen.rate)
            ),
        )
    return tuple(plans)


def _end_s(spec: WorkloadSpec, num_programs: int | None, duration_s: float | None) -> float:
    if duration_s is not None:
        return _positive("duration_s", duration_s)
    return spec.duration_s if num_programs is None else inf


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


def _positive(field: str, value: Number, *, infinite: bool = False) -> Number:
    if isnan(value) or value <= 0 or (value == inf and not infinite):
        raise UsageError(f"{field} = {value}: must be above 0" + (" or inf" if infinite else ""))
    return value
