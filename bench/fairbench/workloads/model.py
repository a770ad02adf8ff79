"""The shape of a workload file: who the clients are, what each runs, how often (frozen models)."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fairbench.core import HEAVIEST, LIGHTEST
from fairbench.errors import unknown_name
from fairbench.workloads.consistency import CALM, check_workload
from fairbench.workloads.program_params import Value
from fairbench.workloads.traffic import DEFAULT, traffic_kind
from fairbench.workloads.traffic.source import TrafficKind

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MAX_NAME = 64  # characters; it is part of a directory's name


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError("must be letters, digits, - and _, the first a letter or digit")
    return name


def _not_generated(name: str) -> str:
    if re.fullmatch(r"client-\d+", name):
        raise ValueError("clients without a name of their own are called client-N")
    return _plain(name)


Weight = Annotated[float, Field(ge=LIGHTEST, le=HEAVIEST)]
"""What a client is entitled to, relative to the others."""
ClientName = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_not_generated)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Arrivals(_Table):
    """When programs arrive: a ``kind`` of ``traffic``, and its own parameters."""

    kind: str
    params: dict[str, Value | list[dict[str, Value]]] = {}


class Machine(_Table):
    """What a workload is made for, where a run names nothing else: profile and engine by name."""

    gpu: str
    model: str
    engine: str | None = None


class ServiceClass(_Table):
    """Clients that were promised the same: ``targets`` as in ``fairbench.targets``, by latency."""

    clients: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    targets: dict[str, str] = {}


class Misbehaving(_Table):
    """One misbehaving client: what it does differently from the well-behaved ones.

    ``rate_multiple`` multiplies its program rate, up to ``until_fraction`` of the run if given.
    ``arrivals`` are instead of the workload's.
    """

    client: Annotated[int, Field(ge=0, lt=1000)]
    params: dict[str, Value] = {}
    rate_multiple: Positive = 1.0
    until_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    arrivals: Arrivals | None = None


class Other(_Table):
    """A well-behaved client that runs another kind of program, ``params`` being all of its own.

    ``rate`` is in programs/s per GPU, ``arrivals`` instead of the workload's.
    """

    client: Annotated[int, Field(ge=0, lt=1000)]
    program: str
    rate: Positive
    params: dict[str, Value]
    arrivals: Arrivals | None = None


class Scenario(_Table):
    """``rate`` is in programs/s of each well-behaved client, per GPU.

    ``rates`` replace it on other machines, by what their timing profile's id begins with.
    ``params`` and ``settings`` override the workload's own. In a mix of workloads, ``others`` are
    the clients that run another program; their rates change as ``rate`` does.
    """

    description: str = ""
    rate: Positive
    rates: dict[str, Positive] | None = None
    params: dict[str, Value] = {}
    settings: dict[str, Value] = {}
    # Strict would refuse a TOML array for a tuple.
    misbehaving: Annotated[tuple[Misbehaving, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Other, ...] | None, Field(strict=False)] = None

    def rate_on(self, profile_id: str) -> float:
        """The rate on the machine of a timing profile: that of the longest beginning, or usual."""
        own = self.rates or {}
        beginnings = [start for start in own if profile_id.startswith(start)]
        return own[max(beginnings, key=len)] if beginnings else self.rate


class WorkloadSpec(_Table):
    """A whole workload file. ``params`` are those of a well-behaved client.

    ``settings`` are the scheduler parameters that suit this workload (``"dlpm.quantum" = 10000``).
    ``latency`` is what its latency columns show: a whole program, or each request's first token.
    ``client_names`` name the first clients; the rest are ``client-N``. ``client_weights`` are by
    name, 1 where none is given. ``targets`` are the latencies that every client was promised,
    ``classes`` groups of clients with their own laid over them. ``arrivals`` say when programs
    come, by default a Gamma process; ``machine`` what it is made for. Times are in seconds.
    """

    name: Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_plain)]
    description: str = ""
    program: str
    latency: Literal["program", "ttft"]
    clients: Annotated[int, Field(ge=1, le=1000)]
    client_names: Annotated[tuple[ClientName, ...] | None, Field(strict=False)] = None
    client_weights: dict[str, Weight] | None = None
    targets: dict[str, str] | None = None
    classes: dict[Annotated[str, AfterValidator(_plain)], ServiceClass] | None = None
    arrivals: Arrivals | None = None
    machine: Machine | None = None
    duration_s: Positive
    warmup_s: NotNegative
    max_drain_s: NotNegative
    params: dict[str, Value]
    settings: dict[str, Value] = {}
    scenarios: Annotated[dict[str, Scenario], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self

    def traffic(self, own: Arrivals | None = None) -> TrafficKind:
        """The kind of its arrivals, or of a client's own; ``gamma`` where none is named.

        Raises UsageError.
        """
        chosen = own or self.arrivals or Arrivals(kind=DEFAULT)
        return traffic_kind(chosen.kind, chosen.params)

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
