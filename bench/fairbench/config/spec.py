"""The specification of an experiment, and its draft."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from fairbench import workloads
from fairbench.config.backend import NO_PROFILE, BackendConfig, storable
from fairbench.config.settings import current_keys, flat_settings, stored_tables
from fairbench.errors import Conflict, UsageError, unknown_name
from fairbench.files.formats import dumps
from fairbench.metrics.shown_percentiles import ALLOWED, parse_percentiles, written_percentiles
from fairbench.schedulers.gateway.registry import ADMISSION, OFF, AdmissionParams
from fairbench.schedulers.params import make_params
from fairbench.tenants import tenants_of, with_tenants
from fairbench.workloads.clients import client_targets, plan_clients
from fairbench.workloads.model import MAX_NAME, Weight, WorkloadSpec
from fairbench.workloads.plan import ClientPlan

if TYPE_CHECKING:
    from fairbench.workloads.datasets import Source

# The table ``GIVEN`` of a stored experiment holds the values that the user chose.
GIVEN = "given"
# The table ``given`` stores the keys ``AS_GIVEN`` as the user wrote them, not as full values.
AS_GIVEN = ("gpu", "weights", "workload")
# Under the key ``DIGEST``, the table ``given`` stores a hash that reveals edits of a stored file.
DIGEST = "digest"

MAX_REPLICAS = 4096
MAX_CLIENTS = 10_000
MAX_ROUTERS = 64

Count = Annotated[int, Field(ge=1)]
Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
Rate = Annotated[float, Field(gt=0)]  # With an infinite rate, all programs arrive at time 0.
# With an infinite shape of the gamma distribution, all gaps between arrivals are equal.
Shape = Annotated[float, Field(ge=0.001)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ExperimentSpec(BaseModel):
    """A complete experiment, which is saved with every result so that the run can be repeated.

    Text in brackets at the end of an entry says what the value None means.

    - ``scheduler``: a scheduler's name, or ``router+local``.
    - ``dp``: the total number of replicas.
    - ``prefill``, ``decode``: numbers of prefill-only and of decode-only replicas [every replica
      does prefill and decode].
    - ``gpu``: id of a timing profile, or ``NO_PROFILE`` for real servers.
    - ``model``: the model of the timing profile; for real servers, a path or a name on a model hub.
    - ``request_rate``: programs/s of each well-behaved client over the whole cluster [the
      workload's rate times ``dp``].
    - ``duration_s``: seconds during which programs arrive; with None, programs arrive until every
      well-behaved client has sent ``num_programs`` programs.
    - ``window``: the measured period: ``arrivals`` (after the warm-up, while programs arrive) or
      ``whole`` (the whole run) [arrivals].
    - ``settings``: every parameter ``NAME.PARAM`` of the router, the local scheduler and the
      simulated machine (``MACHINE``).
    - ``weights``: weights by client, or by tenant with a name that ends in /; clients without an
      entry have weight 1.
    - ``goodput``: latency targets with keys LATENCY or NAME.LATENCY, which override the targets of
      the workload.
    - ``percentiles``: latency percentiles of summaries, separated by commas [the default
      percentiles].
    - ``gateway``: policy of the queue in front of the router [no queue].
    - ``saturation``: the rule by which the gateway recognises full workers.
    - ``routers``: number of routers that share the workers; None means 1.
    - ``engine``: the engine whose behaviour the simulated workers follow [the default engine].
    - ``engine_code``: path of a Python interpreter with an installed engine, whose own code then
      schedules the simulated requests [None: fairbench's model of the engine].
    - ``charge_pass``: whether the CPU time of the engine's scheduling passes delays its iterations.
    - ``eviction``: eviction policy of KV memory [the engine's LRU].
    - ``memory_records``: whether the run records which clients hold KV memory, even under LRU.
    - ``preset``: name of the preset that provided default values.
    - ``backend``: servers on which the experiment runs [the simulator].
    - ``given``: the values that the user chose (see ``config.origins``); None if unknown.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        ser_json_inf_nan="constants",  # A setting may be infinite.
    )

    scheduler: str
    router: str
    local: str
    dp: Replicas
    prefill: Replicas | None = None
    decode: Replicas | None = None
    scenario: str
    gpu: str
    model: str
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    num_programs: Count | None = None
    request_rate: Rate | None = None
    burstiness: Shape
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    warmup_s: Seconds
    window: Literal["arrivals", "whole"] | None = None
    max_drain_s: Seconds
    dataset_path: str | None = None
    dataset_map: dict[str, str] | None = None
    tokenizer: str | None = None
    tag: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    preset: str | None = None
    weights: dict[str, Weight] | None = None
    goodput: dict[str, str] | None = None
    percentiles: str | None = None
    settings: dict[str, Any]
    gateway: str | None = None
    saturation: str | None = None
    routers: Annotated[int, Field(ge=2, le=MAX_ROUTERS)] | None = None
    engine: str | None = None
    engine_code: str | None = None
    charge_pass: bool | None = None
    eviction: str | None = None
    memory_records: bool | None = None
    backend: SerializeAsAny[BackendConfig] | None = None
    given: dict[str, Any] | None = None
    workload: WorkloadSpec

    def __eq__(self, other: object) -> bool:
        """Return whether two specs describe equal experiments, apart from ``given``."""
        if not isinstance(other, ExperimentSpec):
            return NotImplemented
        return bool(super().__eq__(other.model_copy(update={GIVEN: self.given})))

    @field_validator("settings", mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        return flat_settings(value) if isinstance(value, Mapping) else value

    @field_validator("percentiles")
    @classmethod
    def _percentiles(cls, value: str | None) -> str | None:
        try:
            return value and written_percentiles(parse_percentiles(value))
        except UsageError:
            raise ValueError(ALLOWED) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.duration_s is not None and self.warmup_s >= self.duration_s:
            late = f"warmup_s = {self.warmup_s}: must be below duration_s"
            raise Conflict(late, "warmup_s", "duration_s")
        if self.tokenizer is not None and self.dataset_path is None:
            alone = "tokenizer: needs dataset_path, because it counts the tokens of real prompts"
            raise Conflict(alone, "tokenizer")
        if self.dataset_map is not None and self.dataset_path is None:
            alone = "dataset_map: needs dataset_path, whose fields it names"
            raise Conflict(alone, "dataset_map")
        if self.dataset_path is not None and self.workload.scenario(self.scenario).others:
            more = (
                "dataset_path: needs a scenario with a single kind of program, and this "
                "scenario has several"
            )
            raise Conflict(more, "dataset_path", "scenario", "workload")
        names = self.workload.name_clients(self.clients)
        entitled = with_tenants(names)
        for name in self.weights or ():
            if name not in entitled:
                unknown = str(unknown_name("client in weights", name, entitled))
                raise Conflict(unknown, "weights", "clients", "workload")
        self._check_targets(names)
        return self

    def _check_targets(self, names: Sequence[str]) -> None:
        try:
            targets = client_targets(self.workload, self.goodput or {}, names)
        except UsageError as error:
            raise Conflict(str(error), "goodput", "clients", "workload") from None
        if self.gpu == NO_PROFILE and any(one.of_alone for one in targets.values()):
            alone = (
                "goodput: a target such as 3x (3 times the latency on an idle replica) needs "
                "a timing profile; give a time, such as 500ms"
            )
            raise Conflict(alone, "goodput")

    @property
    def records_memory(self) -> bool:
        """Whether the run records which clients hold KV memory; False with ``engine_code``."""
        return self.engine_code is None and bool(self.eviction or self.memory_records)

    @property
    def routed_workers(self) -> int:
        """The number of workers among which the router chooses.

        In a disaggregated cluster, the router chooses among prefill workers only.
        """
        return self.prefill or self.dp

    @property
    def tenant_weights(self) -> dict[str, float]:
        """The weights of tenants whose weight is not 1, by the name of the tenant."""
        tenants = tenants_of(self.workload.name_clients(self.clients))
        return {name: one for name, one in (self.weights or {}).items() if name in tenants}

    @property
    def admission(self) -> AdmissionParams | None:
        """The parameters of admission control, or None if admission control is off."""
        params = make_params(ADMISSION, AdmissionParams, self.settings)
        return None if params.policy == OFF else params

    def source(self) -> Source | None:
        """Return the data set that provides the run's lengths, or None if lengths are drawn."""
        if self.dataset_path is None:
            return None

        kind = self.workload.program
        return workloads.load_source(kind, self.dataset_path, self.tokenizer, self.dataset_map)

    def client_plans(self) -> tuple[ClientPlan, ...]:
        """Return a plan for each client, which describes the programs that the client sends.

        Raises UsageError if a value of the experiment is impossible.
        """
        return plan_clients(
            self.workload,
            self.scenario,
            dp=self.dp,
            gpu=self.gpu,
            clients=self.clients,
            request_rate=self.request_rate,
            num_programs=self.num_programs,
            burstiness=self.burstiness,
            duration_s=self.duration_s,
            weights=self.weights,
            goodput=self.goodput,
        )


class Origin(IntEnum):
    """The origins of values, ordered from weak to strong.

    A stronger origin, such as a flag, overrides a weaker origin, such as a default.
    """

    DEFAULT, WORKLOAD, PRESET, FILE, FLAG = range(5)


class Layered(UserDict[str, object]):
    """Values with their origins (``Origin``), filled in from flags down to defaults.

    A key keeps its origin when its value is replaced or removed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[str, Origin] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over keys in the order of ``Origin``; errors name the first wrong key."""
        return iter(sorted(self.data, key=self.origin))

    def fill(self, values: Mapping[str, object], origin: Origin) -> None:
        """Add the values of an origin, but skip keys that another origin has already set."""
        for key, value in values.items():
            if self.origins.setdefault(key, origin) is origin:
                self.data[key] = value

    def origin(self, key: str) -> Origin:
        """Return the origin of a key's value, such as a flag or preset."""
        return self.origins.get(key, Origin.DEFAULT)

    def is_said(self, key: str) -> bool:
        """Return whether the user gave a value for a key of the experiment."""
        return self.origin(key) >= Origin.FILE

    def of_flags(self) -> dict[str, object]:
        """Return the values that the user's flags set."""
        return {key: one for key, one in self.data.items() if self.origin(key) is Origin.FLAG}


class Draft(Layered):
    """An ``ExperimentSpec`` before validation; ``settings`` has keys such as ``dlpm.quantum``."""

    def __init__(self, flags: Mapping[str, object], assignments: Mapping[str, object]) -> None:
        super().__init__()
        self.settings = Layered()
        self.fill(flags, Origin.FLAG)
        self.settings.fill(current_keys(assignments), Origin.FLAG)
        backend = flags.get("backend") or {}
        table = backend if isinstance(backend, Mapping) else ("kind",)
        self.origins |= {f"backend.{key}": Origin.FLAG for key in table}

    def fill(self, values: Mapping[str, object], origin: Origin) -> None:
        """Add the values of an origin, but skip keys that another origin has already set.

        If ``scheduler`` is already set, ``router`` and ``local`` are skipped, because ``scheduler``
        names both. If the key ``gateway`` is already set, the key ``saturation`` is skipped.
        """
        if origin > Origin.DEFAULT:
            hidden = {"router", "local"} if "scheduler" in self else set()
            hidden |= {"saturation"} if "gateway" in self else set()
            values = {key: value for key, value in values.items() if key not in hidden}
        super().fill(values, origin)

    @property
    def flagged(self) -> set[str]:
        """The keys and settings that the user's flags set."""
        return self._keys_of(Origin.FLAG)

    @property
    def of_preset(self) -> set[str]:
        """The keys and settings that the preset sets."""
        return self._keys_of(Origin.PRESET)

    def _keys_of(self, origin: Origin) -> set[str]:
        origins = [*self.origins.items(), *self.settings.origins.items()]
        return {key for key, one in origins if one is origin}


def to_toml(spec: ExperimentSpec) -> str:
    """Return a TOML file from which ``fairbench run`` builds an identical spec.

    The TOML file contains no secrets from the flags of servers.
    """
    data = spec.model_dump(mode="json", exclude_none=True)
    if spec.backend is not None:
        data = storable(data)
    data["settings"] = stored_tables(data["settings"])
    given = data.pop(GIVEN, None)
    if given is not None:
        settings = {"settings": stored_tables(given["settings"])}
        plain = {key: one for key, one in data.items() if key in given and key not in AS_GIVEN}
        data[GIVEN] = {**given, **plain, DIGEST: digest_of(data), **settings}
    return dumps(data)


def digest_of(tables: Mapping[str, Any]) -> str:
    """Return a hash of an experiment, with 16 hexadecimal digits.

    ``tables`` are the TOML tables of the experiment's file. The hash ignores ``tag``, ``backend``
    and ``given``.
    """
    kept = {key: value for key, value in tables.items() if key not in ("tag", "backend", GIVEN)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def without_given(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's tables without ``given``, the values that the user chose."""
    return {key: value for key, value in tables.items() if key != GIVEN}


def file_tables(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the tables that the file ``experiment.toml`` of an experiment contains."""
    return tomllib.loads(to_toml(spec))


def experiment_tables(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the tables of an experiment's file without the table ``given`` of chosen values."""
    return without_given(file_tables(spec))


def identity(spec: ExperimentSpec) -> str:
    """Return a hash that identifies an experiment, ignoring ``tag``, ``preset`` and ``given``."""
    text = to_toml(spec.model_copy(update={"tag": None, "preset": None, GIVEN: None}))
    return hashlib.sha256(text.encode()).hexdigest()
