"""Checks of cluster options: prefill and decode replicas, eviction, several routers, gateway.

The option ``engine_code``, the path of an installed engine's interpreter, is checked here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fairbench.config.backend import NEED_SESSIONS, BackendConfig
from fairbench.config.own_code import OWN_EVICTIONS, evicts_inside, is_plugged_in
from fairbench.config.spec import MAX_REPLICAS, Draft, ExperimentSpec
from fairbench.doors import CODE_GROUP, registered
from fairbench.errors import UsageError, about
from fairbench.hardware.catalogue import resolve_profile
from fairbench.hardware.engines import DEFAULT_ENGINE, DISAGGREGATION
from fairbench.hardware.engines import ENGINES as ENGINE_KINDS
from fairbench.hardware.timing import TimingProfile
from fairbench.named import imported
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.eviction import registry
from fairbench.schedulers.gateway.registry import (
    ADMISSION,
    DEFAULT_DETECTOR,
    GATEWAY,
    NO_GATEWAY,
    OFF,
    AdmissionParams,
    default_detector,
    detector_class,
)
from fairbench.schedulers.params import make_params, own_settings
from fairbench.schedulers.peers import ROUTERS
from fairbench.schedulers.registry import build_local

SIDES = ("prefill", "decode")
# The simulator supports eviction policies and disaggregation only with the engines ``ENGINES``.
ENGINES = (DEFAULT_ENGINE, "vllm")
KEYS = frozenset({*SIDES, "routers", "eviction", "memory_records", "charge_pass"})
# The keys ``APART`` cannot be combined with separate prefill and decode replicas.
APART = ("routers", "eviction", "memory_records")


def check_sides(flags: Mapping[str, Any]) -> None:
    """Raise UsageError if ``dp`` is combined with ``prefill`` or ``decode`` replicas."""
    given = [key for key in SIDES if flags.get(key) is not None]
    if given and flags.get("dp") is not None:
        raise UsageError(
            f"dp = {flags['dp']}: cannot be combined with {given[0]} = {flags[given[0]]}: give "
            "either dp, or prefill and decode"
        )


def _settle_sides(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Set ``dp``, the total number of replicas, to the sum of ``prefill`` and ``decode``.

    The flags ``prefill`` and ``decode`` override the value ``dp`` of an experiment file.
    """
    sides = {key: draft[key] for key in SIDES if draft.get(key) is not None}
    if not sides:
        return
    for key, other in (SIDES, SIDES[::-1]):
        if other not in sides:
            raise UsageError(
                f"{key} = {sides[key]!r}: needs {other}, the number of {other} replicas, too"
            )
    whole = 0
    for key, number in sides.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise UsageError(f"{key} = {number!r}: must be a valid integer")
        if number < 1:
            raise UsageError(f"{key} = {number}: must be greater than or equal to 1")
        whole += number
    what = f"prefill = {sides['prefill']}"
    if backend is not None:
        raise UsageError(
            f"{what}: not supported by backend {backend.kind}; only simulated clusters can have "
            "separate prefill and decode replicas"
        )
    if (engine or DEFAULT_ENGINE) not in ENGINES:
        choices = " or ".join(ENGINES)
        raise UsageError(f"{what}: not supported by engine {engine}; engine must be {choices}")
    for key in APART:
        if draft.get(key) is not None:
            raise UsageError(f"{key} = {draft[key]!r}: must be unset if prefill and decode are set")
    if whole > MAX_REPLICAS:
        raise UsageError(
            f"{what}, decode = {sides['decode']}: the sum must be at most {MAX_REPLICAS}"
        )
    strongest = max(map(draft.origin, SIDES))
    if draft["dp"] != whole and draft.is_said("dp") and draft.origin("dp") >= strongest:
        raise UsageError(f"dp = {draft['dp']!r}: must be prefill + decode = {whole}; leave dp out")
    draft["dp"] = whole


def settle_cluster(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Check an experiment's number of routers, eviction policy, and prefill and decode workers.

    Raises UsageError if a value is wrong or not supported.
    """
    with about("routers", "backend.kind"):
        _settle_routers(draft, backend)
    with about(EVICTION, MEMORY_RECORDS, "engine", "backend.kind"):
        _settle_eviction(draft, backend, engine)
    if draft.get(CHARGE_PASS) is False:
        del draft[CHARGE_PASS]
    elif CHARGE_PASS in draft and draft.get(ENGINE_CODE) is None:
        raise UsageError(
            f"{CHARGE_PASS} = {draft[CHARGE_PASS]!r}: needs {ENGINE_CODE}, to measure its passes"
        ).of(CHARGE_PASS, ENGINE_CODE)
    _settle_sides(draft, backend, engine)


def cluster_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the components, such as the eviction policy, whose parameters the experiment uses."""
    routers = () if draft.get(ROUTERS, 1) == 1 else (ROUTERS,)
    disaggregation = () if draft.get("prefill") is None else (DISAGGREGATION,)
    return routers + eviction_parts(draft) + disaggregation


def check_disaggregated(engine: str | None, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for settings that are not supported in a disaggregated cluster."""
    if settings.get(key := "vllm.async_scheduling"):
        raise UsageError(f"{key} = True: must be unset if prefill and decode are set")
    key = f"{DISAGGREGATION}.reserve"
    if settings.get(key) == "admission" and (engine or DEFAULT_ENGINE) != DEFAULT_ENGINE:
        raise UsageError(
            f"{key} = 'admission': not supported by engine {engine}, which cannot reserve a decode "
            "replica's memory before the prompt is computed"
        )


def check_used(given: Iterable[str], specs: Collection[ExperimentSpec]) -> None:
    """Raise UsageError for a setting that has no effect in any of the experiments.

    ``given`` contains the keys of the settings that the user's flags set. Settings of schedulers
    are not checked, because a command may compare schedulers with and without a setting.
    """
    needs = {policy: f"{EVICTION} = {policy!r}" for policy in registry.ALL_EVICTIONS}
    needs |= {ROUTERS: "several routers", DISAGGREGATION: "prefill and decode"}
    for key in given:
        owner = key.split(".", 1)[0]
        if owner in needs and not any(own_settings(owner, spec.settings) for spec in specs):
            raise UsageError(f"{key}: has no effect without {needs[owner]}; leave it out").of(key)


EVICTION, MEMORY_RECORDS, CHARGE_PASS = "eviction", "memory_records", "charge_pass"


def _settle_eviction(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Check a draft's eviction policy; delete ``memory_records`` if it has the default False."""
    if draft.get(MEMORY_RECORDS) is False:
        del draft[MEMORY_RECORDS]
    for key in (EVICTION, MEMORY_RECORDS):
        if key not in draft:
            continue
        if backend is not None:
            _check_backend(key, draft[key], backend)
        if (engine or DEFAULT_ENGINE) not in ENGINES:
            raise UsageError(
                f"{key} = {draft[key]!r}: only the engines {' and '.join(ENGINES)} support {key}"
            )
    if EVICTION in draft:
        policy = draft[EVICTION]
        if not isinstance(policy, str):
            raise UsageError(f"{EVICTION} = {policy!r}: must be a string")
        if draft.get(ENGINE_CODE) is None:  # An engine's code may define other eviction policies.
            registry.eviction_class(policy)


def _check_backend(key: str, value: Any, backend: BackendConfig) -> None:
    kind = backend.kind
    if key != EVICTION or not backend.evictions:
        raise UsageError(
            f"{key} = {value!r}: backend {kind} has its own eviction policy; leave {key} out"
        )
    if value in registry.ALL_EVICTIONS and value not in backend.evictions:
        allowed = ", ".join(name for name in registry.EVICTIONS if name in backend.evictions)
        raise UsageError(
            f"{key} = {value!r}: must be one of {allowed} for backend {kind}, whose requests do "
            "not name their sessions"
        )
    if backend.own_policy is not None and value != registry.DEFAULT_EVICTION:
        raise UsageError(
            f"{key} = {value!r}: needs fairbench's scheduler in the server; leave "
            "backend.schedule_policy out"
        )


def eviction_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the eviction policy that the user chose as a tuple, empty without a choice.

    The result leaves out an eviction policy of an engine's own code, which has no parameters in
    fairbench. Raises UsageError if the name of the eviction policy is unknown.
    """
    policy, engine = draft.get(EVICTION), str(draft.get("engine") or DEFAULT_ENGINE)
    if not isinstance(policy, str):
        return ()
    if draft.get(ENGINE_CODE) is not None and not evicts_inside(policy, engine):
        return ()
    registry.eviction_class(policy)
    return (policy,)


def memory_parts(
    draft: Mapping[str, object], backend: BackendConfig | None, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return ``(MEMORY,)`` if memory shares are on, or an empty tuple if memory shares are off.

    Raises UsageError if the servers lack fairbench's eviction policies, or if the eviction policy
    does not support memory shares.
    """
    key = registry.SHARE
    if make_params(registry.MEMORY, registry.MemoryParams, settings).share:
        with about(key, EVICTION, "backend.kind"):
            if backend is not None and not backend.evictions:
                raise UsageError(
                    f"{key} = True: only simulated runs and servers of SGLang and vLLM support "
                    f"{key}; leave it out"
                )
            registry.check_shares(str(draft.get(EVICTION, registry.DEFAULT_EVICTION)))
    return (registry.MEMORY,)


def _settle_routers(draft: Draft, backend: BackendConfig | None) -> None:
    """Check a draft experiment's number of routers, and remove the default ``routers = 1``."""
    number = draft.get(ROUTERS)
    if number == 1 and not isinstance(number, bool):
        del draft[ROUTERS]
    elif number is not None and backend is not None:
        raise UsageError(
            f"routers = {number!r}: must be 1, because only simulated runs support several routers"
        )


GATEWAY_KEYS = ("gateway", "saturation")
ADMISSION_MODEL = "llama-3.1-8b"  # model of the timing profile if the user names only a GPU


def gateway_of(draft: Mapping[str, object]) -> dict[str, str]:
    """Return the gateway policy and saturation detector by key, or {} if there is no gateway.

    Raises UsageError for an unknown name, or for a saturation detector without a gateway.
    """
    if "saturation" in draft and "gateway" not in draft:
        raise UsageError(f"saturation = {draft['saturation']!r}: needs a gateway; set gateway, too")
    if draft.get("gateway", NO_GATEWAY) == NO_GATEWAY:
        return {}
    found = {}
    for key in GATEWAY_KEYS:
        if not isinstance(name := draft.get(key, ""), str):
            raise UsageError(f"{key} = {name!r}: must be a string")
        found[key] = name
    usual = default_detector(found["gateway"], DEFAULT_DETECTOR)
    if "saturation" not in draft:
        found["saturation"] = usual
    detector_class(found["saturation"])
    return found


def admission_profile(params: AdmissionParams) -> TimingProfile:
    """Return the timing profile that ``params.profile`` names by its id or by a GPU.

    Raises UsageError if the timing profile is unknown or missing.
    """
    gpu, _, rest = params.profile.partition("/")
    if not gpu:
        raise UsageError(
            f"{ADMISSION}.policy = {params.policy!r}: this policy needs a timing profile of the "
            f"workers; set {ADMISSION}.profile, too, for example to a100 (see `list profiles`)"
        )
    return resolve_profile(params.profile, rest.split("/")[0] or ADMISSION_MODEL)


def settle_gateway(draft: Draft, backend: BackendConfig | None) -> None:
    """Fill in the gateway policy and the saturation detector of an experiment with a gateway.

    Raises UsageError if the gateway is unknown or not supported.
    """
    with about(*GATEWAY_KEYS, "admission.policy", "admission.profile", "backend.kind"):
        gateway = gateway_of(draft)
        _check_gateway(gateway, draft.settings, backend)
    for key in GATEWAY_KEYS:
        draft.pop(key, None)
    draft.update(gateway)


def _check_gateway(
    gateway: Mapping[str, str], settings: Mapping[str, object], backend: BackendConfig | None
) -> None:
    """Raise UsageError for a gateway or admission control that the servers do not support.

    Only simulated runs support a gateway. Admission control needs fairbench's own router and a
    timing profile of the workers. An emulator's clock must run as fast as the router's clock.
    """
    policy = settings.get(f"{ADMISSION}.policy", OFF)
    if policy != OFF and backend is not None:
        which = f"{ADMISSION}.policy = {policy!r}"
        if not backend.is_managed or backend.external_router is not None:
            raise UsageError(f"{which}: needs fairbench's own router in front of the servers")
        if (scale := getattr(backend, "time_scale", 1.0)) != 1.0:
            raise UsageError(
                f"{which}: time_scale = {scale} is not supported, because admission control "
                "estimates times on the router's clock; use time_scale = 1"
            )
        if not backend.has_profile:
            admission_profile(make_params(ADMISSION, AdmissionParams, settings))
    if gateway and backend is not None:
        raise UsageError(
            f"gateway = {gateway['gateway']!r}: only simulated runs support a gateway; leave it out"
        )


ENGINE_CODE = "engine_code"
DEFAULT_POLICY = "fcfs"
WITH_SETTINGS = frozenset({"lpm"})

# The simulator models the features ``MODELLED``; an engine's own code does not support them.
MODELLED = ("prefill", "decode", "memory_records")
# An engine's real code lacks the settings ``OF_THE_MODEL``, which the simulator's model has.
OF_THE_MODEL = (
    "num_continuous_decode_steps",
    "in_batch_prefix_caching",
    "batch_is_full",
    "prefix_match_us",
    "load_cap",
    "release",
    "async_scheduling",
    "enable_mixed_chunk",
)


def check_own_code(
    draft: Draft,
    backend: BackendConfig | None,
    engine: str | None,
    local: str,
    settings: Mapping[str, Any],
) -> None:
    """Raise UsageError for options that contradict ``engine_code``.

    If ``engine_code`` is set, an installed engine's own code runs in the simulation.
    """
    given = f"{ENGINE_CODE} = {draft[ENGINE_CODE]!r}"
    if not isinstance(draft[ENGINE_CODE], str):
        raise UsageError(f"{given}: must be the path of a Python, or installed").of(ENGINE_CODE)
    if backend is not None:
        own = f"{given}: supported only in simulations, not by backend {backend.kind}"
        raise UsageError(own).of(ENGINE_CODE, "backend.kind")
    name = engine or DEFAULT_ENGINE
    if name not in (known := registered(CODE_GROUP)):
        choices = " or ".join(known)
        raise UsageError(f"{given}: not supported for engine {name}; engine must be {choices}").of(
            ENGINE_CODE, "engine"
        )
    for key in MODELLED:
        if draft.get(key) is not None:
            raise UsageError(
                f"{key} = {draft[key]!r}: not supported with {ENGINE_CODE}; leave it out"
            ).of(key, ENGINE_CODE)
    _check_own_eviction(draft.get(EVICTION), name, local)
    if settings.get(policy := f"{ADMISSION}.policy", OFF) != OFF:
        raise UsageError(f"admission control: not supported with {ENGINE_CODE}; leave it out").of(
            policy, ENGINE_CODE
        )
    if settings.get(order := f"{GATEWAY}.order") == "longest-prefix":
        raise UsageError(
            f"{order} = 'longest-prefix': not supported with {ENGINE_CODE}, because the engine "
            "does not report the cached tokens of a request that a gateway queues; choose from "
            "fcfs, edf"
        ).of(order, ENGINE_CODE)
    _check_settings(name, settings)
    if is_plugged_in(local, engine):
        _check_plugged_in(local, settings)


def _check_own_eviction(policy: Any, engine: str, local: str) -> None:
    """Raise UsageError for an eviction policy that cannot run inside the engine's own code.

    fairbench's eviction policies run only with fairbench's schedulers. Unknown names are accepted
    for SGLang, because a modified SGLang may have more policies.
    """
    own, wrong = OWN_EVICTIONS[engine], ""
    inside = [
        one for one in registry.EVICTIONS if evicts_inside(one, engine) and one not in NEED_SESSIONS
    ]
    if policy in inside:
        if not is_plugged_in(local, engine):
            wrong = "needs a scheduler of fairbench inside the engine, such as --local dlpm"
    elif policy not in (None, *own) and (policy in registry.ALL_EVICTIONS or len(own) == 1):
        wrong = f"choose from {', '.join([*own, *inside])}"
    if wrong:
        raise UsageError(f"{EVICTION} = {policy!r}: not supported with {ENGINE_CODE}: {wrong}").of(
            EVICTION, ENGINE_CODE
        )


def _check_plugged_in(policy: str, settings: Mapping[str, Any]) -> None:
    scheduler = build_local(policy, settings)
    for does, what in (
        (type(scheduler).accepts is not LocalScheduler.accepts, "refuses requests"),
        (not scheduler.work_conserving, "may wait although there is room"),
        (scheduler.sort_queue is not None, "is a model of an engine's own policy"),
        (scheduler.pass_s is not None, "models the time of a pass"),
        (scheduler.decodes_first is not None, "chooses between prefill and decode steps"),
    ):
        if does:
            raise UsageError(
                f"local = {policy!r}: {what}, which is not supported with {ENGINE_CODE}; give "
                "another scheduler of fairbench, or a policy of the engine by --schedule-policy"
            ).of("local", "scheduler", ENGINE_CODE)


def _check_settings(engine: str, settings: Mapping[str, Any]) -> None:
    kind = ENGINE_KINDS[engine]
    usual = imported(kind.params)()
    for name in OF_THE_MODEL:
        key = f"{kind.part}.{name}"
        value = settings.get(key)
        if value is not None and value != getattr(usual, name, None):
            raise UsageError(
                f"{key} = {value!r}: not supported with {ENGINE_CODE}, because the engine's "
                "own code decides this; leave it out"
            ).of(key, ENGINE_CODE)


def own_policy(draft: Draft | Mapping[str, object], of_pair: str, known: Iterable[str]) -> str:
    """Return the scheduling policy that runs in the engine.

    If the user names no policy and no engine implements the scheduler ``of_pair``, the policy is
    FCFS.

    Args:
        draft: The unchecked experiment, which sets ``engine_code``.
        of_pair: The local scheduler of the pair ``router+local`` that ``scheduler`` names.
        known: Names of the scheduling policies that engines implement.
    """
    if "local" in draft:
        return str(draft["local"])
    said = isinstance(draft, Draft) and draft.is_said("scheduler")
    if of_pair in known or "+" in str(draft.get("scheduler")) or said:
        return of_pair
    return DEFAULT_POLICY
