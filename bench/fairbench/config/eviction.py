"""The eviction policy of an experiment: how replicas free KV memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.errors import UsageError
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, EVICTIONS, eviction_class

EVICTION, MEMORY_RECORDS = "eviction", "memory_records"


def with_eviction(
    draft: Mapping[str, Any], backend: BackendConfig | None, engine: str | None
) -> dict[str, Any]:
    """Return the draft without memory records if they are not requested.

    Raises UsageError for an unknown policy, and for an engine or a backend that evicts by itself.
    """
    made = dict(draft)
    if made.get(MEMORY_RECORDS) is False:
        del made[MEMORY_RECORDS]
    for key in (EVICTION, MEMORY_RECORDS):
        if key not in made:
            continue
        if backend is not None:
            _check_backend(key, made[key], backend)
        if engine is not None and engine != DEFAULT_ENGINE:
            raise UsageError(f"{key} = {made[key]!r}: only engine {DEFAULT_ENGINE} supports {key}")
    if EVICTION in made:
        if not isinstance(made[EVICTION], str):
            raise UsageError(f"{EVICTION} = {made[EVICTION]!r}: must be a text")
        eviction_class(made[EVICTION])
    return made


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


def eviction_parts(draft: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the eviction policy as a part with parameters, if the draft names one."""
    policy = draft.get(EVICTION)
    return (policy,) if isinstance(policy, str) else ()
