"""The shape of a workload file: who the clients are, what each runs, how often (frozen models)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fairbench.errors import UsageError, unknown_name
from fairbench.errors.validation import explain
from fairbench.workloads.programs import program_class

Value = bool | int | float | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MAX_NAME = 64  # characters; it is part of a directory's name

CALM = "none"
"""The scenario in which every client is well-behaved; every workload has it."""


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError("must be letters, digits, - and _, the first a letter or digit")
    return name


def _not_generated(name: str) -> str:
    if re.fullmatch(r"client-\d+", name):
        raise ValueError("clients without a name of their own are called client-N")
    return _plain(name)


ClientName = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_not_generated)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Misbehaving(_Table):
    """One misbehaving client: what it does differently from the well-behaved ones.

    ``rate_multiple`` multiplies its program rate, up to ``until_fraction`` of the run if given.
    """

    client: Annotated[int, Field(ge=0, lt=1000)]
    params: dict[str, Value] = {}
    rate_multiple: Positive = 1.0
    until_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None


class Other(_Table):
    """A well-behaved client that runs another kind of program, ``params`` being all of its own.

    ``rate`` is in programs/s per GPU.
    """

    client: Annotated[int, Field(ge=0, lt=1000)]
    program: str
    rate: Positive
    params: dict[str, Value]


class Scenario(_Table):
    """``rate`` is in programs/s of each well-behaved client, per GPU.

    ``params`` and ``settings`` override the workload's own. In a mix of workloads, ``others`` are
    the clients that run another program.
    """

    description: str = ""
    rate: Positive
    params: dict[str, Value] = {}
    settings: dict[str, Value] = {}
    # Strict would refuse a TOML array for a tuple.
    misbehaving: Annotated[tuple[Misbehaving, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Other, ...] | None, Field(strict=False)] = None


class WorkloadSpec(_Table):
    """A whole workload file. ``params`` are those of a well-behaved client.

    ``settings`` are the scheduler parameters that suit this workload (``"dlpm.quantum" = 10000``).
    ``latency`` is what its latency columns show: a whole program, or each request's first token.
    ``client_names`` name the first clients; the rest are ``client-N``. Times are in seconds.
    """

    name: Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_plain)]
    description: str = ""
    program: str
    latency: Literal["program", "ttft"]
    clients: Annotated[int, Field(ge=1, le=1000)]
    client_names: Annotated[tuple[ClientName, ...] | None, Field(strict=False)] = None
    duration_s: Positive
    warmup_s: NotNegative
    max_drain_s: NotNegative
    params: dict[str, Value]
    settings: dict[str, Value] = {}
    scenarios: Annotated[dict[str, Scenario], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.warmup_s >= self.duration_s:
            raise ValueError(f"warmup_s = {self.warmup_s}: must be below duration_s")
        try:
            program_class(self.program)
        except UsageError as error:
            raise ValueError(str(error)) from None
        _check_client_names(self)
        make_params(self.program, self.params, "params")
        for name, scenario in self.scenarios.items():
            _check_scenario(self, name, scenario)
        return self

    def name_clients(self, count: int) -> tuple[str, ...]:
        """What ``count`` clients are called, in order: their own names, else ``client-N``."""
        named = (self.client_names or ())[:count]
        return (*named, *(f"client-{index}" for index in range(len(named), count)))

    @property
    def scenario_names(self) -> list[str]:
        """Names that ``scenario`` takes, in alphabetical order."""
        return sorted({CALM, *self.scenarios})

    def scenario(self, name: str) -> Scenario:
        """A scenario by name; ``none`` is s1 (else the first one) without its misbehavers.

        Raises UsageError if there is none of that name.
        """
        if name in self.scenarios:
            return self.scenarios[name]
        if name != CALM:
            raise unknown_name(f"scenario of {self.name}", name, self.scenario_names)
        model = self.scenarios.get("s1") or next(iter(self.scenarios.values()))
        calm = {"description": "every client is well-behaved", "misbehaving": ()}
        return model.model_copy(update=calm)

    def scheduler_settings(self, scenario: str) -> dict[str, Value]:
        """The workload's scheduler parameters, ``NAME.PARAM`` -> value, in this scenario."""
        return {**self.settings, **self.scenario(scenario).settings}


def make_params(kind: str, values: Mapping[str, Value], where: str) -> Any:
    """The ``Params`` of a kind. Raises ValueError: one line that names ``where`` and the key."""
    params_class = program_class(kind).Params
    names = [field.name for field in fields(params_class)]
    for name in values:
        if name not in names:
            raise ValueError(str(unknown_name(f"parameter in {where}", name, names)))
    try:
        # By way of JSON, where strict takes a table for a dataclass.
        return _adapter(params_class).validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None
    except TypeError:
        raise ValueError(f"parameters in {where} are numbers: dates are not allowed") from None


@lru_cache(maxsize=32)
def _adapter(params_class: type) -> TypeAdapter[Any]:
    return TypeAdapter(params_class)


def _check_client_names(spec: WorkloadSpec) -> None:
    named = spec.client_names or ()
    if len(named) > spec.clients:
        raise ValueError(f"client_names: {len(named)} names for clients = {spec.clients}")
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"client_names: {name!r} is listed twice")


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
    for other in others:
        try:
            make_params(other.program, other.params, f"{where}.others.params")
        except UsageError as error:
            raise ValueError(f"{where}.others: {error}") from None


def _check_numbers(where: str, clients: Sequence[int], spec: WorkloadSpec) -> None:
    if len(clients) != len(set(clients)):
        raise ValueError(f"{where}: a client is listed twice")
    for client in clients:
        if client >= spec.clients:
            raise ValueError(f"{where}.client = {client}: must be below clients = {spec.clients}")
