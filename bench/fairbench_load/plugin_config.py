"""The configuration of fairbench's plugin for servers, and checks of engine releases."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.schedulers.base import LocalScheduler, Setup, checked_weights
from fairbench.schedulers.eviction.policies import EvictionPolicy
from fairbench.schedulers.eviction.registry import (
    DEFAULT_EVICTION,
    MEMORY,
    SHARE,
    MemoryParams,
    build_eviction,
    check_shares,
    eviction_class,
)
from fairbench.schedulers.load_cap import NONE, LoadCap
from fairbench.schedulers.params import as_settings, make_params
from fairbench.schedulers.registry import build_local, local_class
from fairbench_load.by_class import ByClass

LOCAL = "FAIRBENCH_LOCAL"
SETTINGS = "FAIRBENCH_SETTINGS"
WEIGHTS = "FAIRBENCH_WEIGHTS"
EVICTION = "FAIRBENCH_EVICTION"

# On a server's metrics page, the labels of the metric ``PROOF`` name the scheduler and its
# parameters. The metric ``LIMIT`` shows the maximum number of running requests.
PROOF, LIMIT = "fairbench_scheduler", "fairbench_max_running_requests"

# ``LOAD_CAP`` is the only engine setting that the plugin itself enforces.
LOAD_CAP = "engine.load_cap"
OF_SERVER = (LOAD_CAP, SHARE)


class Classes(Enum):
    """The order in which an engine serves requests of different priorities."""

    LOWEST_FIRST = "the lowest number first"
    HIGHEST_FIRST = "the highest number first"


@dataclass(frozen=True)
class PluginConfig:
    """The configuration of a server's plugin: a local scheduler with all its parameters.

    - ``params`` maps ``NAME.PARAM`` to the value of each parameter of the scheduler and of the
      eviction policy. ``params`` contains ``LOAD_CAP`` only with a load cap, and ``SHARE`` only
      with memory shares.
    - ``weights`` are the clients' weights; a client that is not listed has weight 1.
    - ``eviction`` is the eviction policy of the server's cache; None means the server's own policy.
    - ``clients`` are the clients that the eviction policy distinguishes.
    - ``classes`` is the order in which the engine serves priority classes; each priority class has
      its own scheduler. If ``classes`` is None, one scheduler orders all requests.
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
        assert self.eviction is not None
        return build_eviction(self.eviction, self.params)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that give a server this configuration.

        Every variable is set, even if empty, so that the server does not inherit values from this
        process.
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
        """Whether ``load_cap`` is set; a load cap requires that the server measures its steps."""
        return LOAD_CAP in self.params

    @property
    def shares_memory(self) -> bool:
        """Whether admission counts the KV memory of each client."""
        return bool(self.params.get(SHARE))

    def load_cap(self) -> LoadCap:
        return LoadCap(self.params.get(LOAD_CAP))


class Evicting(NamedTuple):
    """The eviction policy of a run's servers, and the clients that the policy distinguishes."""

    policy: str | None = None
    clients: tuple[str, ...] = ()


OWN_ORDER = Evicting()


def plugin_config(
    local: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    evicting: Evicting = OWN_ORDER,
) -> PluginConfig:
    """Return the plugin's configuration for a scheduler, from a run's settings.

    Raises UsageError for an unknown scheduler, eviction policy or parameter, for an invalid value,
    and for ``SHARE`` with an eviction policy that gives clients no shares.

    Args:
        local: Name of the local scheduler.
        settings: The settings of the run, as ``NAME.PARAM``.
        weights: Weights by client; a client that is not listed has weight 1.
        evicting: The eviction policy, with its client names; LRU means the server's own policy.
    """
    params = make_params(local, local_class(local).Params, settings)
    cap = make_params("engine", EngineParams, settings).load_cap
    told, checked = plugin_params(local, params, cap), checked_weights(weights or {})
    policy, clients = evicting
    if make_params(MEMORY, MemoryParams, settings).share:
        check_shares(policy)
        told[SHARE] = True
    if policy in (None, DEFAULT_EVICTION):
        return PluginConfig(local, told, checked)
    eviction_params = make_params(policy, eviction_class(policy).Params, settings)
    # ``prepare`` raises UsageError if the settings name an unknown client.
    build_eviction(policy, settings).prepare(Setup(clients, checked))
    told |= as_settings(policy, eviction_params)
    return PluginConfig(local, told, checked, policy, clients)


def plugin_params(local: str, params: Any, load_cap: str | int | None) -> dict[str, Any]:
    """Return a scheduler's parameters as ``NAME.PARAM``, and the load cap if there is one."""
    told = as_settings(local, params)
    return told if load_cap in (None, NONE) else {**told, LOAD_CAP: load_cap}


def config_from(environment: Mapping[str, str]) -> PluginConfig:
    """Return the plugin's configuration, read from environment variables.

    Raises UsageError if an environment variable is invalid.
    """
    local = environment[LOCAL]
    if local_class(local).sort_queue is not None:
        raise UsageError(
            f"{LOCAL} = {local!r}: is a policy of SGLang itself; leave {LOCAL} out, and start "
            f"SGLang with --schedule-policy {local}"
        )
    if local_class(local).decodes_first is not None:
        raise UsageError(
            f"{LOCAL} = {local!r}: chooses between prefill and decode steps, which only the "
            "simulated SGLang supports; choose another scheduler"
        )
    settings = read_variable(environment, SETTINGS, f'{{"{local}.PARAM": VALUE}}')
    shape = '{"policy": "POLICY", "clients": ["CLIENT"]}'
    found = read_variable(environment, EVICTION, shape)
    policy, clients = found.get("policy"), found.get("clients", [])
    if found and not (isinstance(policy, str) and isinstance(clients, list) and clients):
        raise UsageError(f"{EVICTION} = {environment[EVICTION]}: must have the form {shape}")
    evicting = Evicting(policy, tuple(map(str, clients)))
    for name in settings:
        if not name.startswith((f"{local}.", f"{evicting.policy}.")) and name not in OF_SERVER:
            raise UsageError(
                f"{SETTINGS}: {name!r} is not a parameter of {local}, the scheduler that "
                f"{LOCAL} names"
            )
    weights = read_variable(environment, WEIGHTS, '{"CLIENT": WEIGHT}')
    return plugin_config(local, settings, weights, evicting)


def read_variable(environment: Mapping[str, str], variable: str, shape: str) -> dict[str, Any]:
    """Return the JSON object in an environment variable, or {} if the variable is not set.

    Raises UsageError if the variable's value is not a JSON object. The message shows ``shape``, an
    example of a valid value.
    """
    text = environment.get(variable) or "{}"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{variable} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{variable} = {text}: must have the form {shape}")
    return found


def check_classes(flag: str, config: PluginConfig) -> None:
    """Raise UsageError if a server with memory shares also has ``flag``, which adds priorities."""
    if config.shares_memory:
        raise UsageError(
            f"{flag} is not supported with {SHARE}: each priority class has its own queue, but "
            f"{SHARE} needs a single queue"
        )


# If the environment variable ``UNTESTED`` is 1, engines may be newer than all supported releases.
UNTESTED = "FAIRBENCH_ALLOW_UNTESTED_RELEASE"


def installed(distributions: Sequence[str]) -> str:
    """Return the version of the first installed distribution, or "" if none is installed.

    The version is read from the distribution's metadata, because importing an engine is slow.
    """
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def check_release(engine: str, found: str, supported: Sequence[str]) -> bool:
    """Return True for a supported engine release, or False for a newer release that is allowed.

    ``supported`` lists the supported releases in ascending order. Raises UsageError if the engine
    is not installed or its release is not allowed.
    """
    if not found:
        raise UsageError(f"{engine} is not installed in this Python")
    release = found.partition("+")[0]
    if release in supported:
        return True
    oldest, newest = supported[0], supported[-1]
    window = f"the schedulers run inside {oldest} to {newest}"
    if _release_numbers(release) <= _release_numbers(newest):
        raise UsageError(f"{engine} {found} is not supported: {window}")
    if os.environ.get(UNTESTED) != "1":
        raise UsageError(
            f"{engine} {found} is not supported: {window}; to try a newer release, give "
            f"--allow-untested-release, or set {UNTESTED}=1 in the server's environment"
        )
    return False


def check_function(engine: str, target: str, expected: tuple[str, ...]) -> None:
    """Raise UsageError unless the first parameters of the engine's function are ``expected``.

    ``target`` is the dotted name of the engine's function. ``expected`` lists the names of the
    function's first parameters.
    """
    try:
        function = pkgutil.resolve_name(target)
    except AttributeError as error:
        raise UsageError(f"{engine} has no {target}: {error}") from None
    except Exception as error:  # Importing a broken package may raise any exception.
        cause: BaseException = error
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise UsageError(f"{engine} cannot be imported: {reason}") from None
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise UsageError(
            f"{engine}'s {target} takes the arguments {', '.join(found)} instead of "
            f"{', '.join(expected)}"
        )


def allow_untested() -> None:
    """Allow newer engine releases than the supported ones, in this process and its servers."""
    os.environ[UNTESTED] = "1"


def untested_environment() -> dict[str, str]:
    """Return the environment variable ``UNTESTED`` for remote servers, if it is set."""
    return {UNTESTED: "1"} if os.environ.get(UNTESTED) == "1" else {}


def _release_numbers(release: str) -> tuple[int, ...]:
    numbers = []
    for part in release.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
