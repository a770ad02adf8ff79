"""Settings of a simulated cluster: disaggregation, eviction, and several routers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.config.spec import MAX_REPLICAS, Draft
from fairbench.errors import UsageError, about
from fairbench.hardware.cluster_params import DISAGGREGATION
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, EVICTIONS, eviction_class
from fairbench.schedulers.params import make_params, own_settings
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams

SIDES = ("prefill", "decode")
# engines that have workers of both kinds, and evict by our policies
ENGINES = (DEFAULT_ENGINE, "vllm")
KEYS = frozenset({*SIDES, "routers", "eviction", "memory_records"})
APART = ("routers", "eviction", "memory_records")  # keys that describe colocated replicas


def check_sides(flags: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of replicas in addition to those of the two sides."""
    given = [key for key in SIDES if flags.get(key) is not None]
    if given and flags.get("dp") is not None:
        raise UsageError(
            f"dp = {flags['dp']}: not beside {given[0]} = {flags[given[0]]}: give either dp, or "
            "prefill and decode"
        )


def _settle_sides(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Set ``dp``, the number of all replicas, if the draft names both sides.

    Flags for the sides override a file's ``dp``. Raises UsageError for one side alone, for
    another ``dp``, and for parts that a disaggregated cluster lacks.
    """
    sides = {key: draft[key] for key in SIDES if draft.get(key) is not None}
    if not sides:
        return
    for key, other in (SIDES, SIDES[::-1]):
        if other not in sides:
            raise UsageError(f"{key} = {sides[key]!r}: needs {other}, too: how many replicas")
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
            f"{what}: backend {backend.kind} is not disaggregated, only simulated runs"
        )
    if (engine or DEFAULT_ENGINE) not in ENGINES:
        raise UsageError(f"{what}: engine {engine} has none: choose from {', '.join(ENGINES)}")
    for key in APART:
        if draft.get(key) is not None:
            raise UsageError(f"{key} = {draft[key]!r}: not with prefill and decode")
    if whole > MAX_REPLICAS:
        raise UsageError(
            f"{what}, decode = {sides['decode']}: at most {MAX_REPLICAS} replicas in all"
        )
    strongest = max(map(draft.origin, SIDES))
    if draft["dp"] != whole and draft.is_said("dp") and draft.origin("dp") >= strongest:
        raise UsageError(
            f"dp = {draft['dp']!r}: prefill and decode are {whole} replicas: leave dp out"
        )
    draft["dp"] = whole


def settle_cluster(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Check a draft's routers, evictions and sides. Raises UsageError."""
    with about("routers", "backend.kind"):
        _settle_routers(draft, backend)
    with about(EVICTION, MEMORY_RECORDS, "engine", "backend.kind"):
        _settle_eviction(draft, backend, engine)
    _settle_sides(draft, backend, engine)


def cluster_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the parts whose parameters apply to the routers, evictions and sides of a draft."""
    return routers_parts(draft) + eviction_parts(draft) + disaggregation_parts(draft)


def check_disaggregated(engine: str | None, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for settings that the engine lacks in a disaggregated cluster."""
    if settings.get(key := "vllm.async_scheduling"):
        raise UsageError(f"{key} = True: not with prefill and decode")
    key = f"{DISAGGREGATION}.reserve"
    if settings.get(key) == "admission" and (engine or DEFAULT_ENGINE) != DEFAULT_ENGINE:
        raise UsageError(
            f"{key} = 'admission': engine {engine} reserves memory once a prompt is computed"
        )


def disaggregation_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the part whose parameters a disaggregated cluster has; empty for any other."""
    return (DISAGGREGATION,) if draft.get("prefill") is not None else ()


EVICTION, MEMORY_RECORDS = "eviction", "memory_records"


def _settle_eviction(draft: Draft, backend: BackendConfig | None, engine: str | None) -> None:
    """Leave memory records out if they are not requested.

    Raises UsageError for an unknown policy, and for an engine or a backend that evicts by itself.
    """
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
            raise UsageError(f"{EVICTION} = {policy!r}: must be a text")
        eviction_class(policy)


def _check_backend(key: str, value: Any, backend: BackendConfig) -> None:
    """Raise UsageError unless servers of the backend evict by this policy of ours."""
    kind = backend.kind
    if key != EVICTION or not backend.evictions:
        raise UsageError(
            f"{key} = {value!r}: backend {kind} has its own eviction policy; leave {key} out"
        )
    if value in EVICTIONS and value not in backend.evictions:
        allowed = ", ".join(name for name in EVICTIONS if name in backend.evictions)
        raise UsageError(
            f"{key} = {value!r}: must be one of {allowed} for backend {kind}, whose requests do "
            "not tell their sessions"
        )
    if backend.own_policy is not None and value != DEFAULT_EVICTION:
        raise UsageError(
            f"{key} = {value!r}: needs fairbench's scheduler in the server; leave "
            "backend.schedule_policy out"
        )


def eviction_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the eviction policy as a part with parameters, if the draft names one.

    Raises UsageError if unknown.
    """
    policy = draft.get(EVICTION)
    if not isinstance(policy, str):
        return ()
    eviction_class(policy)
    return (policy,)


SERVED = ("every_s", "ahead_tok_s", "forget_s")  # parameters that real routers support


def _settle_routers(draft: Draft, backend: BackendConfig | None) -> None:
    """Leave the key out if there is a single router.

    Raises UsageError for a number of routers before real or emulated servers.
    """
    number = draft.get(ROUTERS)
    if number == 1 and not isinstance(number, bool):
        del draft[ROUTERS]
    elif number is not None and backend is not None:
        raise UsageError(
            f"routers = {number!r}: must be 1, because only simulated runs support several routers"
        )


def routers_parts(draft: Mapping[str, object]) -> tuple[str, ...]:
    """Return the part whose parameters apply to several routers; empty for one router."""
    return () if draft.get(ROUTERS, 1) == 1 else (ROUTERS,)


def served_routers(settings: Mapping[str, Any]) -> RoutersParams:
    """Return the parameters of a real router with peers. Raises UsageError for wrong values."""
    for name in own_settings(ROUTERS, settings):
        if name not in SERVED:
            raise UsageError(
                f"{ROUTERS}.{name}: only simulated routers support this setting; `serve "
                f"--peer` supports {', '.join(SERVED)}"
            )
    return make_params(ROUTERS, RoutersParams, settings)
