"""A plugin's configuration as environment variables, and the report that proves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from fairbench.errors import RunFailed, UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.live.processes.http import get_json
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.by_class import ByClass
from fairbench.schedulers.eviction.policy import EvictionPolicy
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, build_eviction, eviction_class
from fairbench.schedulers.load_cap import NONE, LoadCap
from fairbench.schedulers.params import as_settings, make_params
from fairbench.schedulers.registry import build_local, local_class
from fairbench.schedulers.setup import Setup, checked_weights

LOCAL = "FAIRBENCH_LOCAL"
SETTINGS = "FAIRBENCH_SETTINGS"
WEIGHTS = "FAIRBENCH_WEIGHTS"
EVICTION = "FAIRBENCH_EVICTION"

# In a server's metrics: the gauge whose labels name the scheduler, and the limit of the batch.
PROOF, LIMIT = "fairbench_scheduler", "fairbench_max_running_requests"

LOAD_CAP = "engine.load_cap"  # the only setting of engines that a plugin obeys


class Classes(Enum):
    """The order in which an engine serves classes of priority."""

    LOWEST_FIRST = "the lowest number first"
    HIGHEST_FIRST = "the highest number first"


@dataclass(frozen=True)
class PluginConfig:
    """A local scheduler with all its parameters, including defaults, as ``NAME.PARAM``.

    The parameters include ``LOAD_CAP`` if it is set, because no server has such a limit itself.
    ``weights`` are the clients' entitlements, 1 by default. ``eviction`` names the policy that
    evicts from the server's cache on behalf of ``clients``, None for the server's own order; its
    parameters are among ``params``. ``classes`` is the engine's order of priorities; with an order,
    each priority has a scheduler of its own.
    """

    local: str
    params: Mapping[str, Any]
    weights: Mapping[str, float] = field(default_factory=dict)
    eviction: str | None = None
    clients: tuple[str, ...] = ()
    classes: Classes | None = None

    def build(self) -> LocalScheduler:
        if self.classes is not None:
            return ByClass(self._build, low_first=self.classes is Classes.LOWEST_FIRST)
        return self._build()

    def _build(self) -> LocalScheduler:
        return build_local(self.local, self.params)

    def build_eviction(self) -> EvictionPolicy:
        """Build a fresh eviction policy. Precondition: there is one."""
        assert self.eviction is not None
        return build_eviction(self.eviction, self.params)

    def environment(self) -> dict[str, str]:
        """Return the environment that makes a server use this configuration.

        All variables are set, so that a server does not take over this process's own.
        """
        eviction = {"policy": self.eviction, "clients": self.clients} if self.eviction else {}
        return {
            LOCAL: self.local,
            SETTINGS: json.dumps(self.params),
            WEIGHTS: json.dumps(self.weights),
            EVICTION: json.dumps(eviction),
        }

    @property
    def has_cap(self) -> bool:
        """Return whether a load cap is set, for which steps must be timed."""
        return LOAD_CAP in self.params

    def load_cap(self) -> LoadCap:
        return LoadCap(self.params.get(LOAD_CAP))


class Evicting(NamedTuple):
    """The eviction policy of a run's servers, and the clients that the policy distinguishes."""

    policy: str | None = None
    clients: tuple[str, ...] = ()


OWN_ORDER = Evicting()  # the server's own order


def plugin_config(
    local: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    evicting: Evicting = OWN_ORDER,
) -> PluginConfig:
    """Return the configuration of one scheduler from a run's settings.

    Raises UsageError for an unknown scheduler or eviction policy, an unknown parameter or a value
    not allowed.

    Args:
        local: Name of the local scheduler.
        settings: Settings of the run, as ``NAME.PARAM``.
        weights: Weights by client; 1 for each client that is not named.
        evicting: Eviction policy and its clients; LRU is the server's own order.
    """
    params = make_params(local, local_class(local).Params, settings)
    cap = make_params("engine", EngineParams, settings).load_cap
    told, checked = plugin_params(local, params, cap), checked_weights(weights or {})
    policy, clients = evicting
    if policy in (None, DEFAULT_EVICTION):
        return PluginConfig(local, told, checked)
    eviction_params = make_params(policy, eviction_class(policy).Params, settings)
    build_eviction(policy, settings).prepare(Setup(clients, checked))  # raises for unknown clients
    told |= as_settings(policy, eviction_params)
    return PluginConfig(local, told, checked, policy, clients)


def plugin_params(local: str, params: Any, load_cap: str | int | None) -> dict[str, Any]:
    """Return all parameters that a server reports for a scheduler, with its load cap if any."""
    told = as_settings(local, params)
    return told if load_cap in (None, NONE) else {**told, LOAD_CAP: load_cap}


def config_from(environment: Mapping[str, str]) -> PluginConfig:
    """Parse the variables of ``PluginConfig.environment``.

    Raises UsageError for an invalid variable.
    """
    local = environment[LOCAL]
    settings = _read(environment, SETTINGS, f'{{"{local}.PARAM": VALUE}}')
    evicting = _evicting(environment)
    for name in settings:
        if not name.startswith((f"{local}.", f"{evicting.policy}.")) and name != LOAD_CAP:
            raise UsageError(
                f"{SETTINGS}: {name!r} is not a parameter of {local}, the scheduler that "
                f"{LOCAL} names"
            )
    weights = _read(environment, WEIGHTS, '{"CLIENT": WEIGHT}')
    return plugin_config(local, settings, weights, evicting)


def _evicting(environment: Mapping[str, str]) -> Evicting:
    shape = '{"policy": "POLICY", "clients": ["CLIENT"]}'
    found = _read(environment, EVICTION, shape)
    policy, clients = found.get("policy"), found.get("clients", [])
    if found and not (isinstance(policy, str) and isinstance(clients, list) and clients):
        raise UsageError(f"{EVICTION} = {environment[EVICTION]}: must have the form {shape}")
    return Evicting(policy, tuple(map(str, clients)))


def _read(environment: Mapping[str, str], variable: str, shape: str) -> dict[str, Any]:
    text = environment.get(variable) or "{}"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{variable} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{variable} = {text}: must have the form {shape}")
    return found


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The report of one scheduler process. ``hooks`` counts hook calls by SGLang method."""

    local: str
    params: Mapping[str, Any]  # every parameter, as NAME.PARAM
    weights: Mapping[str, float] = field(default_factory=dict)
    eviction: str | None = None  # our policy that evicts from its cache
    async_scheduling: bool | None = None  # of vLLM
    residency: Mapping[str, float] = field(default_factory=dict)  # tokens by client
    vocab_size: int | None = None
    hooks: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def fetch_report(url: str) -> list[PluginReport]:
    """Fetch the reports of the schedulers behind a URL; empty if the server runs SGLang's own.

    Raises RunFailed if the server does not answer, or answers unlike SGLang and the emulator.
    """
    info = get_json(f"{url}/server_info")
    # The emulator has one scheduler and reports it at the top level; SGLang has one for each data
    # rank.
    places = [info, *info.get("internal_states", ())]
    known = PluginReport.__slots__
    return [
        PluginReport(**{name: value for name, value in place["fairbench"].items() if name in known})
        for place in places
        if "fairbench" in place
    ]


def require_active(reports: list[PluginReport], wanted: PluginConfig) -> None:
    """Raise RunFailed unless every scheduler of the server runs with this configuration."""
    local = wanted.local
    if not reports:
        raise RunFailed(
            f"the server does not run fairbench's scheduler {local}: fairbench's plugin is "
            "not active in it"
        )
    for report in reports:
        if report.local != local:
            raise RunFailed(f"the server runs the scheduler {report.local} instead of {local}")
        if report.eviction != wanted.eviction:
            evicts, expected = (
                f"by {policy}" if policy else "in its own order"
                for policy in (report.eviction, wanted.eviction)
            )
            raise RunFailed(f"the server evicts {evicts} instead of {expected}")
        for name in {**wanted.params, LOAD_CAP: None}:
            found, value = report.params.get(name), wanted.params.get(name)
            if found != value:
                raise RunFailed(f"the server runs {local} with {name} = {found} instead of {value}")
        if report.weights != wanted.weights:
            raise RunFailed(
                f"the server has the weights {report.weights} instead of {wanted.weights}"
            )
