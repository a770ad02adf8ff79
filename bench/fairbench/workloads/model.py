"""A whole workload file, and the checks that its parts fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from pydantic import model_validator

from fairbench.errors import UsageError, unknown_name
from fairbench.targets import parse_targets
from fairbench.tenants import with_tenants
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.shape import CALM, Misbehaving, Scenario, Workload
from fairbench.workloads.table import Group, multiples


@contextmanager
def _at(where: str = "") -> Iterator[None]:
    """Turn an error of the block into a ValueError about the key ``where``."""
    try:
        yield
    except (UsageError, ValueError) as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def check_workload(spec: Workload) -> None:
    """Raise ValueError, one line that names the key, if values do not fit together."""
    if spec.warmup_s >= spec.duration_s:
        raise ValueError(f"warmup_s = {spec.warmup_s}: must be below duration_s")
    with _at():
        program_class(spec.program)
    _check_client_names(spec)
    names = spec.name_clients(spec.clients)
    _check_clients_in("client_weights", spec, with_tenants(names))
    _check_clients_in("client_owners", spec, names)
    _check_targets(spec)
    with _at("arrivals"):
        spec.traffic(spec.arrivals)
    make_params(spec.program, spec.params, "params")
    for name, scenario in spec.scenarios.items():
        _check_scenario(spec, name, scenario)


def _check_client_names(spec: Workload) -> None:
    named = spec.client_names or ()
    if len(named) > spec.clients:
        raise ValueError(
            f"client_names: has {len(named)} names, and must have one for each of clients = "
            f"{spec.clients}"
        )
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"client_names: {name!r} is listed twice")


def _check_clients_in(key: str, spec: Workload, names: Sequence[str]) -> None:
    for name in getattr(spec, key) or ():
        if name not in names:
            raise ValueError(str(unknown_name(f"client in {key}", name, names)))


def _check_targets(spec: Workload) -> None:
    names = spec.name_clients(spec.clients)
    members: set[str] = set()
    with _at():
        if spec.targets:
            parse_targets(spec.targets, "targets")
        for name, one in (spec.classes or {}).items():
            parse_targets(one.targets, f"classes.{name}.targets")
    for name, one in (spec.classes or {}).items():
        if name in names:
            raise ValueError(
                f"classes.{name}: this is the name of a client; give the class another name"
            )
        for client in one.clients:
            if client not in names:
                raise ValueError(str(unknown_name(f"client in classes.{name}", client, names)))
            if client in members:
                raise ValueError(f"classes.{name}.clients: {client!r} is listed twice")
            members.add(client)


def _check_scenario(spec: Workload, name: str, scenario: Scenario) -> None:
    where = f"scenarios.{name}"
    if name == CALM and scenario.misbehaving:
        raise ValueError(
            f"{where}.misbehaving: not allowed in scenario {CALM!r}, in which every client is "
            "well-behaved"
        )
    make_params(spec.program, {**spec.params, **scenario.params}, f"{where}.params")
    others = scenario.others or ()
    count = scenario.clients or spec.clients
    if count > spec.clients:
        raise ValueError(f"{where}.clients = {count}: must be at most clients = {spec.clients}")
    misbehaving = _numbers(f"{where}.misbehaving", scenario.misbehaving, count)
    for both in misbehaving & _numbers(f"{where}.others", others, count):
        raise ValueError(f"{where}.others: client {both} is also in misbehaving; list it only once")
    plain = count - sum(len(one.numbers) for one in (*scenario.misbehaving, *others))
    with _at(f"{where}.sizes"):
        multiples(scenario.sizes, plain)
    for wrong in scenario.misbehaving:
        at = f"{where}.misbehaving"
        _check_padding(at, wrong, count)
        if wrong.targets:
            with _at():
                parse_targets(wrong.targets, f"{at}.targets")
        make_params(
            spec.program, {**spec.params, **scenario.params, **wrong.params}, f"{at}.params"
        )
        with _at(f"{at}.arrivals"):
            spec.traffic(wrong.arrivals)
    for other in others:
        at = f"{where}.others"
        with _at(at):
            program_class(other.program)
        make_params(other.program, other.params, f"{at}.params")
        with _at(f"{at}.arrivals"):
            spec.traffic(other.arrivals)
        with _at(f"{at}.sizes"):
            multiples(other.sizes, len(other.numbers))


def _check_padding(where: str, wrong: Misbehaving, count: int) -> None:
    for key in ("padding_of", "padding_fresh", "keep_alive"):
        if getattr(wrong, key) is not None and wrong.padding_tokens is None:
            raise ValueError(f"{where}.{key}: needs padding_tokens, the length of the padding")
    whose, where = wrong.padding_of, f"{where}.padding_of"
    if whose is None:
        return
    if whose in wrong.numbers:
        raise ValueError(
            f"{where} = {whose}: must be a client that is not in the same misbehaving table"
        )
    if whose >= count:
        raise ValueError(f"{where} = {whose}: must be below clients = {count}")


def _numbers(where: str, groups: Sequence[Group], count: int) -> set[int]:
    """Return the numbers of the clients in some groups. Raises ValueError for repetitions."""
    found: set[int] = set()
    for group in groups:
        if not found.isdisjoint(group.numbers):
            raise ValueError(f"{where}: a client is listed twice")
        if group.numbers[-1] >= count:
            beyond = "client" if len(group.numbers) == 1 else "client + count - 1"
            raise ValueError(
                f"{where}.{beyond} = {group.numbers[-1]}: must be below clients = {count}"
            )
        found.update(group.numbers)
    return found


class WorkloadSpec(Workload):
    """A whole workload file. ``params`` are those of a well-behaved client.

    The values of another ``workload`` are copied when the file is read. ``settings`` are scheduler
    parameters that suit this workload (``"dlpm.quantum" = 10000``). ``latency`` selects the latency
    of the columns: a whole program, or the first token of each request. ``client_names`` name the
    first clients, optionally with tenants (``org/team/user``); the rest are ``client-N``.
    ``client_weights`` are weights by name, 1 by default; names of tenants end in /.
    ``client_owners`` map clients to the name of their owner, which may be another client.
    ``targets`` are the latencies promised to every client, and ``classes`` are groups of clients
    with their own targets. ``arrivals`` is the arrival process, Gamma by default. ``machine`` is
    the default GPU, model and engine. Times are in seconds.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self
