"""The data model of a workload file: its tables, inheritance between files, and checks.

A file with ``workload = "judge"`` inherits all keys of workload ``judge`` that it does not set
itself. Inherited keys are copied, so that a stored experiment needs no other workload file.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fairbench.core import HEAVIEST, LIGHTEST
from fairbench.errors import UsageError, unknown_name
from fairbench.files.formats import file_of, is_path, read_toml
from fairbench.targets import parse_targets
from fairbench.tenants import SEPARATOR, with_tenants
from fairbench.workloads.programs import Value, make_params, program_class
from fairbench.workloads.traffic import DEFAULT, traffic_kind
from fairbench.workloads.traffic.arrivals import Arrival, ArrivalSource, TrafficKind

INHERITED = "workload"
MAX_DEPTH = 8  # A longer chain of files that inherit from each other counts as a cycle.
NOT_INHERITED = ("name", "description")
_PACKED, _CHECKOUT = files(__package__) / "specs", Path(__file__).parents[3] / "workloads"
# Only an installed wheel contains a copy of the workloads' folder.
SPECS = _PACKED if _PACKED.is_dir() else _CHECKOUT


def rebased(data: Any, folder: Path) -> Any:
    """Resolve relative paths in values of the keys ``workload`` against ``folder``."""
    if isinstance(data, Mapping):
        return {
            key: str(folder / value)
            if key == INHERITED and isinstance(value, str) and is_path(value)
            else rebased(value, folder)
            for key, value in data.items()
        }
    return [rebased(one, folder) for one in data] if isinstance(data, list) else data


def whole_workload(data: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a workload's tables, merged key by key with the inherited tables.

    The tables ``params`` and ``settings`` are merged key by key. A workload does not inherit
    ``params`` from a workload with a different program kind. A scenario is merged with the
    inherited scenario of the same name; a workload without scenarios inherits all scenarios. Raises
    UsageError if the key ``workload`` is invalid, or if a file inherits from itself.
    """
    own = dict(data)
    base = _inherited_tables(own.pop(INHERITED), depth)
    if own.get("program", base.get("program")) != base.get("program"):
        base.pop("params", None)
    scenarios = {
        name: _merged(_subtable(base, "scenarios").get(name), scenario)
        for name, scenario in _subtable(own, "scenarios").items()
    }
    merged = {key: _merged(base.get(key), own[key]) for key in ("params", "settings") if key in own}
    inherited = {key: value for key, value in base.items() if key not in NOT_INHERITED}
    return inherited | own | merged | ({"scenarios": scenarios} if scenarios else {})


def whole_client(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``others``, completed by values that are inherited from another workload.

    Clients in ``others`` run another workload's kind of program. The program, parameters, rate and
    arrivals are inherited from the scenario ``s1`` of the other workload, or from its first
    scenario if ``s1`` does not exist. Raises UsageError for an invalid name.
    """
    own = dict(data)
    base = _inherited_tables(own.pop(INHERITED), 0)
    scenarios = _subtable(base, "scenarios")
    scenario: Any = scenarios.get("s1") or next(iter(scenarios.values()), None) or {}
    if own.get("program", base.get("program")) == base.get("program"):
        usual = _merged(base.get("params"), scenario.get("params", {}))
        own["params"] = _merged(usual, own.get("params", {}))
    inherited: dict[str, Any] = {key: base[key] for key in ("program", "arrivals") if key in base}
    if "rate" in scenario:
        inherited["rate"] = scenario["rate"]
    return inherited | own


def _inherited_tables(ref: Any, depth: int) -> dict[str, Any]:
    if not isinstance(ref, str):
        raise UsageError(f"{INHERITED} = {ref!r}: must be a name or a path")
    if depth >= MAX_DEPTH:
        raise UsageError(
            f"{INHERITED} = {ref!r}: the files refer to each other in a circle, or are nested "
            f"more than {MAX_DEPTH} deep"
        )
    data = read_toml(file_of("workload", ref, SPECS)[0], ref)
    if INHERITED not in data:
        return data
    return whole_workload(rebased(data, Path(ref).parent) if is_path(ref) else data, depth + 1)


def _merged(below: Any, above: Any) -> Any:
    mergeable = isinstance(below, Mapping) and isinstance(above, Mapping)
    return {**below, **above} if mergeable else above


def _subtable(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


MAX_CLIENTS = 1000

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FileTable(BaseModel):
    """A table of a workload file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Group(FileTable):
    """A group of ``count`` consecutive clients, from client number ``client`` on."""

    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    # A group without ``count`` consists of one client.
    count: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None

    @property
    def numbers(self) -> range:
        """The numbers of the clients in this group."""
        return range(self.client, self.client + (self.count or 1))


class Sizes(FileTable):
    """The relative rates of clients: Zipf's law, or a fixed share for the first clients.

    With ``zipf``, the rate of the client in position r is proportional to r to the power of
    -``zipf``. An exponent ``zipf`` of 0 gives equal rates. Without ``zipf``, the first ``heavy``
    clients together send the fraction ``heavy_share`` of all programs.
    """

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    heavy: Annotated[int, Field(ge=1)] | None = None
    heavy_share: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.heavy is None) != (self.heavy_share is None):
            raise ValueError("heavy and heavy_share must be given together")
        if (self.zipf is None) == (self.heavy is None):
            raise ValueError("give either zipf, or heavy and heavy_share")
        return self

    def multiples(self, count: int) -> list[float]:
        """Return a factor for the rate of each client; the mean factor is 1.

        Raises ValueError if ``heavy`` is not below ``count``.
        """
        if self.heavy is None or self.heavy_share is None:
            parts = [rank ** -(self.zipf or 0.0) for rank in range(1, count + 1)]
            return [part * count / sum(parts) for part in parts]
        heavy, light = self.heavy, count - self.heavy
        if light < 1:
            raise ValueError(
                f"heavy = {heavy}: must be below {count}, the number of clients of its group"
            )
        above, below = self.heavy_share / heavy, (1 - self.heavy_share) / light
        return [part * count for part in [above] * heavy + [below] * light]


def multiples(sizes: Sizes | None, count: int) -> list[float]:
    """Return the rate factors of ``count`` clients; all factors are 1 if ``sizes`` is None."""
    return [1.0] * count if sizes is None else sizes.multiples(count)


# Mean intervals below 1 ms are refused, because a run would have millions of intervals.
Mean = Annotated[Positive, Field(ge=0.001)]
Interval = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


class ClientPresence(FileTable):
    """The times at which a client is present: fixed ``windows``, or random intervals.

    With random intervals, a client is alternately present and absent, independently of other
    clients. Presences and absences are exponential, with means ``stay_s`` and ``away_s`` in
    seconds. The process is stationary: a client is present at the start with probability ``stay_s``
    / (``stay_s`` + ``away_s``). Programs that would arrive while a client is absent are not sent.
    """

    windows: Annotated[tuple[Interval, ...] | None, Field(strict=False, min_length=1)] = None
    stay_s: Mean | None = None
    away_s: Mean | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.stay_s is None) != (self.away_s is None):
            raise ValueError("stay_s and away_s must be given together")
        if (self.windows is None) == (self.stay_s is None):
            raise ValueError("give either windows, or stay_s and away_s")
        times = [time_s for window in self.windows or () for time_s in window]
        if any(after <= before for before, after in pairwise(times)):
            raise ValueError(
                "windows: must be a list of [from, until] in seconds, in order and without overlap"
            )
        return self

    def intervals(self, rng: random.Random) -> Iterator[tuple[float, float]]:
        """Yield the intervals of a client's presence in order, without end if they are random.

        ``rng`` is the random number generator for this client's presence. Each call of
        ``intervals`` needs a new stream, so that equal seeds give equal intervals.
        """
        if self.stay_s is None or self.away_s is None:
            yield from self.windows or ()
            return
        now_s = 0.0
        if rng.random() >= self._share:
            now_s = rng.expovariate(1 / self.away_s)
        while True:
            end_s = now_s + rng.expovariate(1 / self.stay_s)
            yield now_s, end_s
            now_s = end_s + rng.expovariate(1 / self.away_s)

    def kept(self, arrivals: Iterable[Arrival], rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals at which the client is present."""
        intervals = self.intervals(rng)
        start_s, end_s = next(intervals)
        for arrival in arrivals:
            while arrival.at_s >= end_s:
                start_s, end_s = next(intervals, (inf, inf))
                if start_s == inf:
                    return
            if arrival.at_s >= start_s:
                yield arrival

    def expected_programs(self, source: ArrivalSource, before_s: float = inf) -> float:
        """Return the expected number of programs that the client starts before ``before_s``."""
        if self.windows is None:
            return source.expected_programs(before_s) * self._share
        edges = [[min(before_s, time_s) for time_s in window] for window in self.windows]
        before = source.expected_programs
        return sum(before(end_s) - before(start_s) for start_s, end_s in edges)

    @property
    def _share(self) -> float:
        stay_s, away_s = self.stay_s or 1.0, self.away_s or 0.0
        return stay_s / (stay_s + away_s)


def names_in(word: str) -> list[str]:
    """Return the names in a range such as ``client-3..5``, or ``word`` if it is no range.

    Raises ValueError if the range descends or has more clients than a workload may have.
    """
    found = re.fullmatch(r"(client-)([0-9]{1,6})\.\.([0-9]{1,6})", word)
    if found is None:
        return [word]
    first, last = int(found[2]), int(found[3])
    if not first <= last < first + MAX_CLIENTS:
        raise ValueError(f"{word!r}: must be an ascending range of at most {MAX_CLIENTS:,} clients")
    return [f"{found[1]}{number}" for number in range(first, last + 1)]


def each_name(words: Iterable[Any]) -> Iterator[Any]:
    """Yield the names in a list of names and ranges, such as ``client-3..5``."""
    for word in words:
        yield from names_in(word) if isinstance(word, str) else (word,)


def by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Expand ranges among the keys of a table; an entry for a single client overrides a range."""
    ranges = {word: names_in(word) for word in table}
    many = {name: table[word] for word, names in ranges.items() for name in names}
    return many | {word: value for word, value in table.items() if ranges[word] == [word]}


CALM = "none"
"""The scenario in which every client is well-behaved; every workload has this scenario."""

# Workload names have a limited length, because they become parts of directory names.
MAX_NAME = 64


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            "the name must consist of letters, digits, - and _, and begin with a letter or digit"
        )
    return name


def _client_name(name: str) -> str:
    """Return a client name if it is plain or contains tenants (``org/team/user``)."""
    if re.fullmatch(r"client-\d+", name):
        raise ValueError(
            "the name must not have the form client-N, which is reserved for clients without a name"
        )
    for part in name.split(SEPARATOR):
        try:
            _checked_name(part)
        except ValueError as error:
            raise ValueError(f"{error}; use {SEPARATOR} only between two names") from None
    return name


Weight = Annotated[float, Field(ge=LIGHTEST, le=HEAVIEST)]
"""The weight of a client, to which its fair share is proportional."""
ClientName = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_client_name)]


ClientList = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda words: list(each_name(words)) if isinstance(words, list) else words),
    Field(strict=False, min_length=1),
]
_ByName = BeforeValidator(lambda table: by_name(table) if isinstance(table, Mapping) else table)
Weights = Annotated[dict[str, Weight], _ByName]
Owners = Annotated[dict[str, Annotated[str, AfterValidator(_checked_name)]], _ByName]


def _with_inherited(data: Any, inherit: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    """Return a table; if it names another workload, ``inherit`` adds the inherited values.

    Raises ValueError if the named workload is unknown or invalid.
    """
    try:
        return inherit(data) if isinstance(data, Mapping) and INHERITED in data else data
    except UsageError as error:
        raise ValueError(str(error)) from None


class Arrivals(FileTable):
    """An arrival process: a ``kind`` of arrivals, and the parameters of that kind."""

    kind: str
    params: dict[str, Value | list[dict[str, Value]]] = Field(default_factory=dict)


class Machine(FileTable):
    """The default GPU, model and engine of a workload, by name."""

    gpu: str
    model: str
    engine: str | None = None


class ServiceClass(FileTable):
    """A class of clients that share the same latency ``targets`` (see ``fairbench.targets``)."""

    clients: ClientList
    targets: dict[str, str] = Field(default_factory=dict)


class Misbehaving(Group):
    """A group of heavy clients, and how they differ from well-behaved clients.

    ``rate_multiple`` multiplies the program rate, either in the whole run or in its first fraction
    ``until_fraction``. ``arrivals`` replaces the workload's arrival process, and ``presence``
    replaces the times at which the scenario's clients are present.

    Each prompt begins with ``padding_tokens`` tokens of padding. If ``padding_of`` is the index of
    another client, the padding begins with the first prompt of that client's latest program.
    Padding that is not copied is text that no other client sends. With ``padding_fresh``, each call
    gets new padding. After its last call, a program sends ``keep_alive`` requests of padding only.

    ``max_new_multiple`` multiplies the output limit that requests claim. ``output_multiple``
    multiplies the real output length; the additional tokens are not useful. At most ``in_flight``
    programs of the client run at once. If ``reaction`` is ``refill``, waiting programs start when a
    request with a long TTFT ends. If ``reaction`` is ``eviction``, waiting programs start when a
    request ends that had few cached tokens. ``targets`` and ``weight`` are the latency targets and
    the weight that the client claims.
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
    presence: ClientPresence | None = None


class Other(Group):
    """Well-behaved clients whose programs are of another kind than the workload's.

    ``rate`` is in programs/s per client and GPU; with ``sizes``, ``rate`` is the mean over the
    clients. ``arrivals`` replaces the workload's arrival process, and ``presence`` replaces the
    times at which the scenario's clients are present. Values inherited from another ``workload``
    are copied when the table is read.
    """

    workload: str | None = None
    program: str
    rate: Positive
    params: dict[str, Value]
    arrivals: Arrivals | None = None
    sizes: Sizes | None = None
    presence: ClientPresence | None = None

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        return _with_inherited(data, whole_client)


class Scenario(FileTable):
    """A scenario: the rates of clients, heavy clients, and values that override the workload's.

    ``rate`` is in programs/s per well-behaved client and GPU. ``rates`` maps prefixes of timing
    profile ids to rates that replace ``rate``. ``params`` and ``settings`` override the values of
    the workload. ``clients`` is the number of clients that send programs; None means all clients of
    the workload. ``others`` are clients that run another workload's kind of program. If ``rate`` is
    changed, the rates of ``others`` change by the same factor. ``sizes`` sets the relative rates of
    well-behaved clients outside ``others``. ``presence`` sets when clients send programs.
    """

    description: str = ""
    rate: Positive
    rates: dict[str, Positive] | None = None
    params: dict[str, Value] = Field(default_factory=dict)
    settings: dict[str, Value] = Field(default_factory=dict)
    clients: Annotated[int, Field(ge=1)] | None = None
    # With strict=True, pydantic would refuse a TOML array as the value of a tuple.
    misbehaving: Annotated[tuple[Misbehaving, ...], Field(strict=False)] = ()
    others: Annotated[tuple[Other, ...] | None, Field(strict=False)] = None
    sizes: Sizes | None = None
    presence: ClientPresence | None = None

    def rate_on(self, profile_id: str) -> float:
        """Return the rate for the timing profile ``profile_id``.

        The longest key of ``rates`` with which ``profile_id`` begins selects the rate. Without such
        a key, the rate is ``rate``.
        """
        own = self.rates or {}
        beginnings = [start for start in own if profile_id.startswith(start)]
        return own[max(beginnings, key=len)] if beginnings else self.rate


class WorkloadSpec(FileTable):
    """The content of a workload file, after all checks; times are in seconds.

    ``params`` are the parameters of well-behaved clients. ``settings`` are scheduler parameters
    that suit the workload (``"dlpm.quantum" = 10000``). ``arrivals`` is the arrival process, by
    default ``gamma``. ``machine`` names the workload's default GPU, model and engine. ``latency``
    selects the latency that tables show: the duration of a program, or the TTFT of a request.
    ``workload`` names another workload; the values inherited from it are copied when the file is
    read.

    ``client_names`` lists names of clients in order, optionally with tenants, such as
    ``org/team/user``. Clients without a given name are called ``client-N``. ``client_weights`` maps
    names to weights (default 1); the name of a tenant ends in ``/``. ``client_owners`` maps clients
    to owners, which may be clients themselves. ``targets`` are the latencies promised to every
    client, and ``classes`` are groups of clients with targets of their own.
    """

    name: Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_checked_name)]
    description: str = ""
    workload: str | None = None
    program: str
    latency: Literal["program", "ttft"]
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    client_names: Annotated[tuple[ClientName, ...] | None, Field(strict=False)] = None
    client_weights: Weights | None = None
    client_owners: Owners | None = None
    targets: dict[str, str] | None = None
    classes: dict[Annotated[str, AfterValidator(_checked_name)], ServiceClass] | None = None
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
        return _with_inherited(data, whole_workload)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self

    @property
    def plays_trace(self) -> bool:
        """Return whether the workload replays the arrivals of a trace."""
        return self.arrivals is not None and self.arrivals.kind == "replay"

    def traffic(self, own: Arrivals | None = None) -> TrafficKind:
        """Return the kind of traffic that ``own`` defines, or by default the workload's arrivals.

        Raises UsageError if the kind or a parameter is wrong.
        """
        chosen = own or self.arrivals or Arrivals(kind=DEFAULT)
        return traffic_kind(chosen.kind, chosen.params)

    def name_clients(self, count: int) -> tuple[str, ...]:
        """Return the names of ``count`` clients: the names in the file, then ``client-N``."""
        named = (self.client_names or ())[:count]
        return (*named, *(f"client-{index}" for index in range(len(named), count)))

    def client_count(self, scenario: str) -> int:
        """Return the number of clients in a scenario of the workload.

        Raises UsageError for an unknown scenario.
        """
        return self.scenario(scenario).clients or self.clients

    @property
    def scenario_names(self) -> list[str]:
        """The names of the scenarios, in alphabetical order."""
        return sorted({CALM, *self.scenarios})

    def scenario(self, name: str) -> Scenario:
        """Return a scenario by name.

        In scenario ``none``, every client is well-behaved. A workload without a scenario ``none``
        uses a copy of scenario ``s1``, or of its first scenario, in which no client is heavy.

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
        """Return the scheduler parameters in a scenario, by ``NAME.PARAM``."""
        return {**self.settings, **self.scenario(scenario).settings}


@contextmanager
def _errors_at(where: str = "") -> Iterator[None]:
    """Re-raise a UsageError or ValueError as a ValueError whose message begins with ``where``."""
    try:
        yield
    except (UsageError, ValueError) as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def check_workload(spec: WorkloadSpec) -> None:
    """Raise ValueError, which names the key, if values of a workload contradict each other."""
    if spec.warmup_s >= spec.duration_s:
        raise ValueError(f"warmup_s = {spec.warmup_s}: must be below duration_s")
    with _errors_at():
        program_class(spec.program)
    _check_client_names(spec)
    names = spec.name_clients(spec.clients)
    _check_clients_in("client_weights", spec, with_tenants(names))
    _check_clients_in("client_owners", spec, names)
    _check_targets(spec)
    with _errors_at("arrivals"):
        spec.traffic(spec.arrivals)
    make_params(spec.program, spec.params, "params")
    for name, scenario in spec.scenarios.items():
        _check_scenario(spec, name, scenario)


def _check_client_names(spec: WorkloadSpec) -> None:
    named = spec.client_names or ()
    if len(named) > spec.clients:
        raise ValueError(
            f"client_names: has {len(named)} names, but must have {spec.clients}, one for each "
            "client"
        )
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"client_names: {name!r} is listed twice")


def _check_clients_in(key: str, spec: WorkloadSpec, names: Sequence[str]) -> None:
    for name in getattr(spec, key) or ():
        if name not in names:
            raise ValueError(str(unknown_name(f"client in {key}", name, names)))


def _check_targets(spec: WorkloadSpec) -> None:
    names = spec.name_clients(spec.clients)
    members: set[str] = set()
    with _errors_at():
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


def _check_scenario(spec: WorkloadSpec, name: str, scenario: Scenario) -> None:
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
    misbehaving = _numbers_of_clients(f"{where}.misbehaving", scenario.misbehaving, count)
    for both in misbehaving & _numbers_of_clients(f"{where}.others", others, count):
        raise ValueError(f"{where}.others: client {both} is also in 'misbehaving'; list it once")
    plain = count - sum(len(one.numbers) for one in (*scenario.misbehaving, *others))
    with _errors_at(f"{where}.sizes"):
        multiples(scenario.sizes, plain)
    for wrong in scenario.misbehaving:
        at = f"{where}.misbehaving"
        _check_padding(at, wrong, count)
        if wrong.targets:
            with _errors_at():
                parse_targets(wrong.targets, f"{at}.targets")
        make_params(
            spec.program, {**spec.params, **scenario.params, **wrong.params}, f"{at}.params"
        )
        with _errors_at(f"{at}.arrivals"):
            spec.traffic(wrong.arrivals)
    for other in others:
        at = f"{where}.others"
        with _errors_at(at):
            program_class(other.program)
        make_params(other.program, other.params, f"{at}.params")
        with _errors_at(f"{at}.arrivals"):
            spec.traffic(other.arrivals)
        with _errors_at(f"{at}.sizes"):
            multiples(other.sizes, len(other.numbers))


def _check_padding(where: str, wrong: Misbehaving, count: int) -> None:
    for key in ("padding_of", "padding_fresh", "keep_alive"):
        if getattr(wrong, key) is not None and wrong.padding_tokens is None:
            raise ValueError(f"{where}.{key}: needs padding_tokens, the length of the padding")
    whose, where = wrong.padding_of, f"{where}.padding_of"
    if whose is None:
        return
    if whose in wrong.numbers:
        raise ValueError(f"{where} = {whose}: must not be one of this table's own clients")
    if whose >= count:
        raise ValueError(f"{where} = {whose}: must be below clients = {count}")


def _numbers_of_clients(where: str, groups: Sequence[Group], count: int) -> set[int]:
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
