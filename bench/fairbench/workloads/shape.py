"""The model of a workload file: clients, their programs, and their rates (frozen models)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fairbench.core import HEAVIEST, LIGHTEST
from fairbench.errors import UsageError, unknown_name
from fairbench.tenants import SEPARATOR
from fairbench.workloads.inherit import KEY as INHERITED
from fairbench.workloads.inherit import whole_client, whole_workload
from fairbench.workloads.programs import Value
from fairbench.workloads.table import (
    MAX_CLIENTS,
    FileTable,
    Group,
    NotNegative,
    Positive,
    Presence,
    Sizes,
)
from fairbench.workloads.traffic import DEFAULT, traffic_kind
from fairbench.workloads.traffic.source import TrafficKind


def names_in(word: str) -> list[str]:
    """Return the names of a range, or the word itself if it is not a range.

    Raises ValueError for a range that ends before it begins or is larger than any workload.
    """
    found = re.fullmatch(r"(client-)([0-9]{1,6})\.\.([0-9]{1,6})", word)
    if found is None:
        return [word]
    first, last = int(found[2]), int(found[3])
    if not first <= last < first + MAX_CLIENTS:
        raise ValueError(f"{word!r}: must go up, and hold at most {MAX_CLIENTS:,} clients")
    return [f"{found[1]}{number}" for number in range(first, last + 1)]


def each_name(words: Iterable[Any]) -> Iterator[Any]:
    """Yield every name of a list with ranges expanded; values that are not text pass through."""
    for word in words:
        yield from names_in(word) if isinstance(word, str) else (word,)


def by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the ranges of a table by name. A client's own entry takes precedence over a range."""
    ranges = {word: names_in(word) for word in table}
    many = {name: table[word] for word, names in ranges.items() for name in names}
    return many | {word: value for word, value in table.items() if ranges[word] == [word]}


CALM = "none"
"""The scenario in which every client is well-behaved; every workload has it."""

MAX_NAME = 64  # limit on characters, because the name is part of a directory's name


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            "must consist of letters, digits, - and _, and begin with a letter or digit"
        )
    return name


def _client_name(name: str) -> str:
    """Validate a client name: a plain name, or tenants before it, as in ``org/team/user``."""
    if re.fullmatch(r"client-\d+", name):
        raise ValueError(
            "must not have the form client-N, which is reserved for clients without a name"
        )
    for part in name.split(SEPARATOR):
        try:
            _plain(part)
        except ValueError as error:
            raise ValueError(f"{error}; {SEPARATOR} separates tenants") from None
    return name


Weight = Annotated[float, Field(ge=LIGHTEST, le=HEAVIEST)]
"""The entitlement of a client relative to the others."""
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
        return inherit(data) if isinstance(data, Mapping) and INHERITED in data else data
    except UsageError as error:
        raise ValueError(str(error)) from None


class Arrivals(FileTable):
    """An arrival process: a ``kind`` of ``traffic`` with its parameters."""

    kind: str
    params: dict[str, Value | list[dict[str, Value]]] = Field(default_factory=dict)


class Machine(FileTable):
    """The default timing profile and engine of a workload, by name."""

    gpu: str
    model: str
    engine: str | None = None


class ServiceClass(FileTable):
    """A class of clients with the same latency ``targets``, as in ``fairbench.targets``."""

    clients: ClientList
    targets: dict[str, str] = Field(default_factory=dict)


class Misbehaving(Group):
    """Heavy clients, and how they differ from the well-behaved clients.

    ``rate_multiple`` multiplies the program rate, up to the fraction ``until_fraction`` of the run
    if given. ``arrivals`` and ``presence`` replace those of the workload and the scenario.
    ``padding_tokens`` is the length of a constant prefix of each prompt. ``padding_of`` names a
    client whose latest program beginning is copied as padding, followed by unique text. With
    ``padding_fresh`` this text is new for each call. After its work, a program sends its padding
    ``keep_alive`` times alone. ``max_new_multiple`` multiplies the claimed output limit, and
    ``output_multiple`` the real output length, of which the additional tokens are not useful. A
    program waits while ``in_flight`` programs of the client are running, or, with ``reaction``, for
    an event of its own requests (``reactions``). ``targets`` and ``weight`` are those that the
    client claims.
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
    """Well-behaved clients that run another kind of program, with all of its ``params``.

    ``rate`` is in programs/s of each client per GPU; with several ``sizes`` it is their mean.
    ``arrivals`` and ``presence`` replace those of the workload and the scenario. The values of
    another ``workload`` are copied when the table is read.
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
    """A scenario: the clients' rates, and its differences from the workload.

    ``rate`` is in programs/s of each well-behaved client, per GPU. ``rates`` replace it on other
    machines, by prefix of the timing profile's id. ``params`` and ``settings`` override those of
    the workload. ``clients`` is the number of the workload's clients that take part, None for all.
    ``others`` are clients that run another program; their rates scale like ``rate``. ``sizes``
    spread the rate over the remaining well-behaved clients. ``presence`` defines when clients are
    present.
    """

    description: str = ""
    rate: Positive
    rates: dict[str, Positive] | None = None
    params: dict[str, Value] = Field(default_factory=dict)
    settings: dict[str, Value] = Field(default_factory=dict)
    clients: Annotated[int, Field(ge=1)] | None = None
    # Strict mode would refuse a TOML array for a tuple.
    misbehaving: Annotated[tuple[Misbehaving, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Other, ...] | None, Field(strict=False)] = None
    sizes: Sizes | None = None
    presence: Presence | None = None

    def rate_on(self, profile_id: str) -> float:
        """Return the rate for a profile: that of the longest matching prefix, or the default."""
        own = self.rates or {}
        beginnings = [start for start in own if profile_id.startswith(start)]
        return own[max(beginnings, key=len)] if beginnings else self.rate


class Workload(FileTable):
    """The fields of a workload file, which ``WorkloadSpec`` checks against each other."""

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

    @property
    def plays_trace(self) -> bool:
        """Return whether its arrivals are those of a trace."""
        return self.arrivals is not None and self.arrivals.kind == "replay"

    def traffic(self, own: Arrivals | None = None) -> TrafficKind:
        """Return a workload's or a client's arrivals, by default ``gamma``. Raises UsageError."""
        chosen = own or self.arrivals or Arrivals(kind=DEFAULT)
        return traffic_kind(chosen.kind, chosen.params)

    def name_clients(self, count: int) -> tuple[str, ...]:
        """Return the names of ``count`` clients in order: given names, else ``client-N``."""
        named = (self.client_names or ())[:count]
        return (*named, *(f"client-{index}" for index in range(len(named), count)))

    def client_count(self, scenario: str) -> int:
        """Return the workload's number of clients. Raises UsageError for an unknown scenario."""
        return self.scenario(scenario).clients or self.clients

    @property
    def scenario_names(self) -> list[str]:
        """The names of the scenarios, in alphabetical order."""
        return sorted({CALM, *self.scenarios})

    def scenario(self, name: str) -> Scenario:
        """Return a scenario by name; ``none`` is s1 (or the first) without heavy clients.

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
