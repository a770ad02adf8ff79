"""The shape of a workload file: who the clients are, what each runs, how often (frozen models)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fairbench.core import HEAVIEST, LIGHTEST
from fairbench.errors import UsageError, unknown_name
from fairbench.tenants import SEPARATOR
from fairbench.workloads.consistency import CALM, check_workload
from fairbench.workloads.inherit import whole_client, whole_workload
from fairbench.workloads.name_ranges import by_name, each_name
from fairbench.workloads.presence import Presence
from fairbench.workloads.program_params import Value
from fairbench.workloads.sizes import Sizes
from fairbench.workloads.table import MAX_CLIENTS, FileTable, Group, NotNegative, Positive
from fairbench.workloads.traffic import DEFAULT, traffic_kind
from fairbench.workloads.traffic.source import TrafficKind

MAX_NAME = 64  # characters; it is part of a directory's name


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError("must be letters, digits, - and _, the first a letter or digit")
    return name


def _client_name(name: str) -> str:
    """Validate a client name: a plain name, or tenants before it, as in ``org/team/user``."""
    if re.fullmatch(r"client-\d+", name):
        raise ValueError("clients without a name of their own are called client-N")
    for part in name.split(SEPARATOR):
        try:
            _plain(part)
        except ValueError as error:
            raise ValueError(f"{error}, with {SEPARATOR} between tenants") from None
    return name


Weight = Annotated[float, Field(ge=LIGHTEST, le=HEAVIEST)]
"""What a client is entitled to, relative to the others."""
ClientName = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_client_name)]


ClientList = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda words: list(each_name(words)) if isinstance(words, list) else words),
    Field(strict=False, min_length=1),
]
_ByName = BeforeValidator(lambda table: by_name(table) if isinstance(table, Mapping) else table)
Weights = Annotated[dict[str, Weight], _ByName]
Owners = Annotated[dict[str, Annotated[str, AfterValidator(_plain)]], _ByName]


def _whole(data: Any, inherit: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    """Return a table merged with the tables that it inherits. Raises ValueError."""
    try:
        return inherit(data) if isinstance(data, Mapping) else data
    except UsageError as error:
        raise ValueError(str(error)) from None


class Arrivals(FileTable):
    """An arrival process: a ``kind`` of ``traffic`` and its parameters."""

    kind: str
    params: dict[str, Value | list[dict[str, Value]]] = Field(default_factory=dict)


class Machine(FileTable):
    """The default timing profile and engine of a workload, by name."""

    gpu: str
    model: str
    engine: str | None = None


class ServiceClass(FileTable):
    """Clients that were promised the same: ``targets`` as in ``fairbench.targets``, by latency."""

    clients: ClientList
    targets: dict[str, str] = Field(default_factory=dict)


class Misbehaving(Group):
    """Misbehaving clients: what each does differently from the well-behaved ones.

    ``rate_multiple`` multiplies its program rate, up to ``until_fraction`` of the run if given.
    ``arrivals`` and ``presence`` are instead of the workload's and the scenario's.
    ``padding_tokens`` come before each of its prompts: what client ``padding_of`` last began with,
    as far as it goes, then text of its own, new for each call if ``padding_fresh``. After its work
    a program sends its padding ``keep_alive`` times alone. Of its outputs it says that they may be
    ``max_new_multiple`` times as long, and they are ``output_multiple`` times as long, of which the
    rest is of no use. A program waits while ``in_flight`` of its own are under way, or, with
    ``reaction``, until something of its own has ended in a way that tells it to go (``reactions``).
    ``targets`` are promises that it claims, laid over those that it has, and ``weight`` is the
    weight that it claims.
    """

    params: dict[str, Value] = Field(default_factory=dict)
    rate_multiple: Positive = 1.0
    until_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    arrivals: Arrivals | None = None
    padding_tokens: Annotated[int, Field(ge=1, le=10**6)] | None = None
    padding_of: Annotated[int, Field(ge=0, lt=1000)] | None = None
    padding_fresh: bool | None = None
    keep_alive: Annotated[int, Field(ge=1, le=1000)] | None = None
    max_new_multiple: Annotated[float, Field(ge=1, le=1e4)] | None = None
    output_multiple: Annotated[int, Field(ge=1, le=1000)] | None = None
    in_flight: Annotated[int, Field(ge=1)] | None = None
    reaction: Literal["refill", "eviction"] | None = None
    targets: dict[str, str] | None = None
    weight: Weight | None = None
    presence: Presence | None = None


class Other(Group):
    """Well-behaved clients that run another kind of program, ``params`` being all of its own.

    ``rate`` is in programs/s of each per GPU, the mean of clients of several ``sizes``.
    ``arrivals`` and ``presence`` are instead of the workload's and the scenario's. What another
    ``workload`` says is put in when the table is read.
    """

    workload: str | None = None
    program: str
    rate: Positive
    params: dict[str, Value]
    arrivals: Arrivals | None = None
    sizes: Sizes | None = None
    presence: Presence | None = None

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        return _whole(data, whole_client)


class Scenario(FileTable):
    """``rate`` is in programs/s of each well-behaved client, per GPU.

    ``rates`` replace it on other machines, by what their timing profile's id begins with.
    ``params`` and ``settings`` override the workload's own. ``clients`` are the first so many of
    the workload's, None for all. In a mix of workloads, ``others`` are the clients that run another
    program; their rates change as ``rate`` does. ``sizes`` spread the rate over the well-behaved
    clients that are not among them; ``presence`` says when clients are there at all.
    """

    description: str = ""
    rate: Positive
    rates: dict[str, Positive] | None = None
    params: dict[str, Value] = Field(default_factory=dict)
    settings: dict[str, Value] = Field(default_factory=dict)
    clients: Annotated[int, Field(ge=1)] | None = None
    # Strict would refuse a TOML array for a tuple.
    misbehaving: Annotated[tuple[Misbehaving, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Other, ...] | None, Field(strict=False)] = None
    sizes: Sizes | None = None
    presence: Presence | None = None

    def rate_on(self, profile_id: str) -> float:
        """Return the rate on a timing profile: the longest matching prefix's, else the usual."""
        own = self.rates or {}
        beginnings = [start for start in own if profile_id.startswith(start)]
        return own[max(beginnings, key=len)] if beginnings else self.rate


class WorkloadSpec(FileTable):
    """A whole workload file. ``params`` are those of a well-behaved client.

    What another ``workload`` says is put in when the file is read. ``settings`` are the scheduler
    parameters that suit this workload (``"dlpm.quantum" = 10000``). ``latency`` is what its latency
    columns show: a whole program, or each request's first token. ``client_names`` name the first
    clients, maybe with their tenants (``org/team/user``); the rest are ``client-N``.
    ``client_weights`` are by name, 1 where none is given; a tenant's ends in /. ``client_owners``
    say whose a client is, where somebody has several of them and names do not say it: client ->
    name of the owner, a client's or not. ``targets`` are the latencies that every client was
    promised, ``classes`` groups of clients with their own laid over them. ``arrivals`` say when
    programs come, by default a Gamma process; ``machine`` what it is made for. Times are in
    seconds.
    """

    name: Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_plain)]
    description: str = ""
    workload: str | None = None
    program: str
    latency: Literal["program", "ttft"]
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    client_names: Annotated[tuple[ClientName, ...] | None, Field(strict=False)] = None
    client_weights: Weights | None = None
    client_owners: Owners | None = None
    targets: dict[str, str] | None = None
    classes: dict[Annotated[str, AfterValidator(_plain)], ServiceClass] | None = None
    arrivals: Arrivals | None = None
    machine: Machine | None = None
    duration_s: Positive
    warmup_s: NotNegative
    max_drain_s: NotNegative
    params: dict[str, Value]
    settings: dict[str, Value] = Field(default_factory=dict)
    scenarios: Annotated[dict[str, Scenario], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        return _whole(data, whole_workload)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self

    def traffic(self, own: Arrivals | None = None) -> TrafficKind:
        """Return the arrival process of the workload or of a client, ``gamma`` where none is named.

        Raises UsageError.
        """
        chosen = own or self.arrivals or Arrivals(kind=DEFAULT)
        return traffic_kind(chosen.kind, chosen.params)

    def name_clients(self, count: int) -> tuple[str, ...]:
        """Return the names of ``count`` clients in order: their own names, else ``client-N``."""
        named = (self.client_names or ())[:count]
        return (*named, *(f"client-{index}" for index in range(len(named), count)))

    def client_count(self, scenario: str) -> int:
        """Return the workload's number of clients. Raises UsageError for an unknown scenario."""
        return self.scenario(scenario).clients or self.clients

    @property
    def scenario_names(self) -> list[str]:
        """Names that ``scenario`` takes, in alphabetical order."""
        return sorted({CALM, *self.scenarios})

    def scenario(self, name: str) -> Scenario:
        """Return a scenario by name; ``none`` is s1 (else the first) without its heavy clients.

        Raises UsageError for an unknown name.
        """
        if name in self.scenarios:
            return self.scenarios[name]
        if name != CALM:
            raise unknown_name(f"scenario of {self.name}", name, self.scenario_names)
        model = self.scenarios.get("s1") or next(iter(self.scenarios.values()))
        calm = {"description": "every client is well-behaved", "misbehaving": ()}
        return model.model_copy(update=calm)

    def scheduler_settings(self, scenario: str) -> dict[str, Value]:
        """Return the scheduler parameters of a scenario (``NAME.PARAM`` -> value)."""
        return {**self.settings, **self.scenario(scenario).settings}
