"""Consistency of a workload file: what must fit together, though each value is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairbench.errors import UsageError, unknown_name
from fairbench.targets import parse_targets
from fairbench.workloads.program_params import make_params
from fairbench.workloads.programs import program_class

if TYPE_CHECKING:
    from fairbench.workloads.model import Arrivals, Scenario, WorkloadSpec

CALM = "none"
"""The scenario in which every client is well-behaved; every workload has it."""


def check_workload(spec: WorkloadSpec) -> None:
    """Raise ValueError, one line that names the key, unless all of it fits together."""
    if spec.warmup_s >= spec.duration_s:
        raise ValueError(f"warmup_s = {spec.warmup_s}: must be below duration_s")
    try:
        program_class(spec.program)
    except UsageError as error:
        raise ValueError(str(error)) from None
    _check_client_names(spec)
    _check_client_weights(spec)
    _check_targets(spec)
    _check_arrivals(spec, "arrivals", spec.arrivals)
    make_params(spec.program, spec.params, "params")
    for name, scenario in spec.scenarios.items():
        _check_scenario(spec, name, scenario)


def _check_arrivals(spec: WorkloadSpec, where: str, arrivals: Arrivals | None) -> None:
    try:
        spec.traffic(arrivals)
    except UsageError as error:
        raise ValueError(f"{where}: {error}") from None


def _check_client_names(spec: WorkloadSpec) -> None:
    named = spec.client_names or ()
    if len(named) > spec.clients:
        raise ValueError(f"client_names: {len(named)} names for clients = {spec.clients}")
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"client_names: {name!r} is listed twice")


def _check_client_weights(spec: WorkloadSpec) -> None:
    names = spec.name_clients(spec.clients)
    for name in spec.client_weights or ():
        if name not in names:
            raise ValueError(str(unknown_name("client in client_weights", name, names)))


def _check_targets(spec: WorkloadSpec) -> None:
    names = spec.name_clients(spec.clients)
    members: set[str] = set()
    try:
        parse_targets(spec.targets or {}, "targets")
        for name, one in (spec.classes or {}).items():
            parse_targets(one.targets, f"classes.{name}.targets")
    except UsageError as error:
        raise ValueError(str(error)) from None
    for name, one in (spec.classes or {}).items():
        if name in names:
            raise ValueError(f"classes.{name}: a client is called so")
        for client in one.clients:
            if client not in names:
                raise ValueError(str(unknown_name(f"client in classes.{name}", client, names)))
            if client in members:
                raise ValueError(f"classes.{name}.clients: {client!r} is listed twice")
            members.add(client)


def _check_scenario(spec: WorkloadSpec, name: str, scenario: Scenario) -> None:
    where = f"scenarios.{name}"
    if name == CALM and scenario.misbehaving:
        raise ValueError(f"{where}.misbehaving: in {CALM!r} every client is well-behaved")
    make_params(spec.program, {**spec.params, **scenario.params}, f"{where}.params")
    others = scenario.others or ()
    _check_numbers(f"{where}.misbehaving", [one.client for one in scenario.misbehaving], spec)
    _check_numbers(f"{where}.others", [one.client for one in others], spec)
    for wrong in scenario.misbehaving:
        if any(wrong.client == other.client for other in others):
            raise ValueError(f"{where}.others: client {wrong.client} also misbehaves")
        merged = {**spec.params, **scenario.params, **wrong.params}
        make_params(spec.program, merged, f"{where}.misbehaving.params")
        _check_arrivals(spec, f"{where}.misbehaving.arrivals", wrong.arrivals)
    for other in others:
        try:
            make_params(other.program, other.params, f"{where}.others.params")
        except UsageError as error:
            raise ValueError(f"{where}.others: {error}") from None
        _check_arrivals(spec, f"{where}.others.arrivals", other.arrivals)


def _check_numbers(where: str, clients: Sequence[int], spec: WorkloadSpec) -> None:
    if len(clients) != len(set(clients)):
        raise ValueError(f"{where}: a client is listed twice")
    for client in clients:
        if client >= spec.clients:
            raise ValueError(f"{where}.client = {client}: must be below clients = {spec.clients}")
