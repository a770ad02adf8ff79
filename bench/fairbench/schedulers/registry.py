"""The registry of schedulers and routers.

To add a scheduler, write its class in a new file, and add a line to the table in this module.

Users can also add schedulers without changing fairbench. Users can name a scheduler's file in the
environment variable ``FAIRBENCH_SCHEDULERS`` (``:`` separates several files). Instead of a named
file, an installed package can register the scheduler as an entry point in the group
``fairbench.local_schedulers`` or ``fairbench.routers``.

The classes of a user's file are checked before any simulation. Each class must have a name and a
constructor. Hooks must have known names and accept the arguments that the host passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from fairbench.doors import find_in_clone, not_loaded, registered
from fairbench.errors import UsageError, unknown_name
from fairbench.files.reader import classes_in, files_named
from fairbench.named import imported
from fairbench.schedulers.base import OPTIONAL_HOOKS, LocalScheduler, Router
from fairbench.schedulers.params import PartParams, make_params, params_of

# the similarity (0 to 1) from which a method's name counts as a misspelt hook
ALIKE = 0.85


def schedulers_in(
    path: Path, named_by: str, base: type[LocalScheduler] | type[Router]
) -> dict[str, str]:
    """Map the names of a file's schedulers (subclasses of ``base``) to ``module:class``.

    Raises UsageError for a file without a usable class, for a misspelt hook and for a hook with
    wrong parameters.
    """
    found = {}
    for attribute, value in classes_in(path, named_by, base, "name"):
        if wrong := unknown_hook(value, base) or wrong_parameters(value, base):
            raise UsageError(f"{path}: class {attribute}: {wrong}")
        found[value.name] = f"{value.__module__}:{attribute}"
    return found


def unknown_hook(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a method whose name looks like a misspelt hook of ``base``, or ""."""
    hooks = {name for name in dir(base) if not name.startswith("_")} | set(base.__annotations__)
    known = {name for one in scheduler.__mro__[1:] for name in vars(one)} | hooks
    for name in vars(scheduler):
        if name.startswith("_") or name in known:
            continue
        near = get_close_matches(name, hooks - vars(scheduler).keys(), n=1, cutoff=ALIKE)
        if near or name.startswith("on_"):
            return f"{unknown_name('hook', name, hooks)} Begin a name of your own with _."
    return ""


def wrong_parameters(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a hook that does not accept the host's arguments, or ""."""
    made = ("params",) if base is LocalScheduler else ("params", "workers")
    if scheduler.__init__ is object.__init__:
        return f"needs a method __init__(self, {', '.join(made)})"
    hooks = {n: hook for n, hook in vars(base).items() if isfunction(hook) and n[0] != "_"}
    if base is LocalScheduler:
        hooks |= OPTIONAL_HOOKS
    passed = {name: tuple(signature(hook).parameters)[1:] for name, hook in hooks.items()}
    for name, arguments in {"__init__": made, **passed}.items():
        own = getattr(scheduler, name)
        if not isfunction(own):
            continue
        try:
            signature(own).bind(None, *arguments)
        except TypeError:
            wanted, given = ", ".join(("self", *arguments)), ", ".join(signature(own).parameters)
            return f"{name}({given}): must be {name}({wanted})"
    return ""


# Schedulers are listed by import path, so that a command imports only the schedulers that it runs.
# Schedulers of other projects and of single studies are registered as entry points.
LOCALS = {
    "fcfs": "fairbench.schedulers.local.fcfs:FCFS",
    "lpm": "fairbench.schedulers.local.lpm:LPM",
    "lpm-client-cap": "fairbench.schedulers.local.lpm_client_cap:ClientCappedLPM",
    "vtc": "fairbench.schedulers.local.vtc:VTC",
    "vtc-predict": "fairbench.schedulers.local.vtc_predict:PredictiveVTC",
    "vtc-match": "fairbench.schedulers.local.vtc_match:MatchingVTC",
    "lcf": "fairbench.schedulers.local.lcf:LCF",
    "rpm": "fairbench.schedulers.local.rpm:RPM",
    "preble-groups": "fairbench.schedulers.local.preble_groups:PrebleGroups",
    "dlpm": "fairbench.schedulers.local.dlpm:DLPM",
    "dlpm-hold": "fairbench.schedulers.local.dlpm_hold:HoldingDLPM",
    "priority": "fairbench.schedulers.local.priority:Priority",
    "sglang-priority": "fairbench.schedulers.local.sglang_priority:SGLangPriority",
    "edf": "fairbench.schedulers.local.edf:EDF",
    "dlpm-edf": "fairbench.schedulers.local.dlpm_edf:DLPMThenEDF",
    "edf-dlpm": "fairbench.schedulers.local.edf_dlpm:EDFThenDLPM",
}

ROUTERS = {
    "round-robin": "fairbench.schedulers.routing.round_robin:RoundRobin",
    "client-round-robin": "fairbench.schedulers.routing.client_round_robin:ClientRoundRobin",
    "least-loaded": "fairbench.schedulers.routing.least_loaded:LeastLoaded",
    "preble-e2": "fairbench.schedulers.routing.preble_e2:PrebleE2",
    "d2lpm": "fairbench.schedulers.routing.d2lpm:D2LPM",
    "fair-finish": "fairbench.schedulers.routing.fair_finish:FairFinish",
    "power-of-two": "fairbench.schedulers.routing.power_of_two:PowerOfTwo",
}

# Each value of `--scheduler` stands for a router and a local scheduler.
PAIRS = {
    "fcfs": ("round-robin", "fcfs"),
    "lpm": ("round-robin", "lpm"),
    "vtc": ("client-round-robin", "vtc"),
    "preble": ("preble-e2", "preble-groups"),
    "preble-code": ("preble-e2-code", "preble-groups-code"),
    "dlpm": ("round-robin", "dlpm"),
    "d2lpm": ("d2lpm", "dlpm"),
    "preble-dlpm": ("preble-e2", "dlpm"),
    "central-dlpm": ("central-dlpm", "central-worker"),
    "fair-finish": ("fair-finish", "dlpm-hold"),
}

# ``PARAMS_OF`` maps each router that orders its own queue to the local scheduler whose parameters
# the router uses.
PARAMS_OF = {"central-dlpm": "dlpm"}

VARIABLE = "FAIRBENCH_SCHEDULERS"
LOCAL_GROUP = "fairbench.local_schedulers"
ROUTER_GROUP = "fairbench.routers"


def locals_by_name() -> Mapping[str, str]:
    """Return ``module:class`` of each local scheduler by name, including users' schedulers."""
    return _with_plugins(LOCAL_GROUP)


def routers_by_name() -> Mapping[str, str]:
    """Return ``module:class`` of each router by name, including users' routers."""
    return _with_plugins(ROUTER_GROUP)


@cache
def _with_plugins(group: str) -> Mapping[str, str]:
    known, base = (LOCALS, LocalScheduler) if group == LOCAL_GROUP else (ROUTERS, Router)
    found = dict(known)
    own = [(name, point.value) for name, point in registered(group).items()]
    for path in user_files():
        if not any(schedulers_in(path, VARIABLE, kind) for kind in (LocalScheduler, Router)):
            raise UsageError(f"{VARIABLE}: {path} has no subclass of LocalScheduler or Router")
        own += schedulers_in(path, VARIABLE, base).items()
    for name, value in own:
        # `--set NAME.PARAM` would be ambiguous if a router and a local scheduler had the same name.
        if name in found or name in LOCALS or name in ROUTERS:
            raise UsageError(
                f"the name {name!r} of the scheduler {value} is already in use; rename it"
            )
        found[name] = value
    return found


def split_pair(scheduler: str) -> tuple[str, str]:
    """Split ``router+local``, or the name of a pair, into the router and the local scheduler.

    Raises UsageError if the name is not registered.
    """
    if scheduler in PAIRS:
        return PAIRS[scheduler]
    router, plus, local = scheduler.partition("+")
    if not plus:
        raise unknown_scheduler("scheduler", scheduler, PAIRS)
    return router, local


def pair_name(router: str, local: str) -> str:
    """Return the name of a pair of schedulers, or ``router+local`` if the pair has no name."""
    for name, pair in PAIRS.items():
        if pair == (router, local):
            return name
    return f"{router}+{local}"


def local_class(name: str) -> type[LocalScheduler]:
    """Return the class of a local scheduler. Raises UsageError for an unknown local scheduler."""
    found: type[LocalScheduler] = _load_class(
        "local scheduler", name, locals_by_name(), LocalScheduler
    )
    return found


def router_class(name: str) -> type[Router]:
    """Return the class of a router. Raises UsageError for an unknown router."""
    found: type[Router] = _load_class("router", name, routers_by_name(), Router)
    return found


def params_owner(router: str) -> str:
    """Return the prefix NAME of a router's settings ``NAME.PARAM``, usually the router's name."""
    return PARAMS_OF.get(router, router)


def other_kind(name: str) -> str:
    """Return advice on which flag takes the scheduler ``name``, or "" if the name is unknown."""
    for kind, others, fix in (
        ("pair of a router and a local scheduler", PAIRS, f"--scheduler {name}"),
        ("local scheduler", locals_by_name(), f"round-robin+{name}, or --local {name}"),
        ("router", routers_by_name(), f"{name}+fcfs, or --router {name}"),
    ):
        if name in others:
            return f"{name} is a {kind}; write {fix}"
    return ""


def unknown_scheduler(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown scheduler, with advice on flags or on a user's own file."""
    if kind := other_kind(name):
        return UsageError(f"unknown {what} {name!r}: {kind}")
    own = [path.name for path in user_files()]
    read = f"{VARIABLE} has {', '.join(own)}" if own else f"put its file's path into {VARIABLE}"
    return UsageError(f"{unknown_name(what, name, known)} If the scheduler is your own: {read}.")


def _load_class(what: str, name: str, known: Mapping[str, str], base: type) -> Any:
    if name not in known:
        raise unknown_scheduler(what, name, known)
    find_in_clone(known[name])
    try:
        found = imported(known[name])
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == known[name].partition(".")[0]:
            raise not_loaded(f"{what} {name!r}", known[name], error) from error
        raise UsageError(f"{what} {name!r} cannot be loaded from {known[name]}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UsageError(
            f"{what} {name!r}: {known[name]} must be a class derived from {base.__name__}"
        )
    return found


def build_local(name: str, settings: Mapping[str, Any]) -> LocalScheduler:
    """Return a new local scheduler; its parameters are the keys ``name.*`` of ``settings``.

    Raises UsageError for an unknown name, an unknown parameter or a value that is not allowed.
    """
    scheduler: Any = local_class(name)
    built: LocalScheduler = scheduler(make_params(name, scheduler.Params, settings))
    return built


def build_router(name: str, settings: Mapping[str, Any], workers: int) -> Router:
    """Return a new router for ``workers`` workers; see ``build_local`` for ``settings``."""
    router: Any = router_class(name)
    built: Router = router(make_params(params_owner(name), router.Params, settings), workers)
    return built


def params_classes() -> PartParams:
    """Return the ``Params`` of each local scheduler and each router with parameters of its own."""
    routers = [name for name in routers_by_name() if name not in PARAMS_OF]
    return params_of(locals_by_name(), local_class) | params_of(routers, router_class)


def user_files() -> list[Path]:
    """Return the Python files that ``FAIRBENCH_SCHEDULERS`` names."""
    return files_named(VARIABLE)
