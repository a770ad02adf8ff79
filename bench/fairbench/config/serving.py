"""Serving: the choices that a backend leaves, such as profile, model and scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import AS_SERVED, EXTERNAL, NO_PROFILE, BackendConfig
from fairbench.config.backend_checks import resolve_backend
from fairbench.config.defaults import DEFAULTS, parts_of, text_of
from fairbench.errors import UsageError, about
from fairbench.hardware.catalogue import canonical_model, is_profile_file, resolve_profile
from fairbench.schedulers.registry import pair_name, params_classes

Chosen = BackendConfig | None

SCHEDULING = ("scheduler", "router", "local")


def defaults_of(backend: Chosen) -> dict[str, Any]:
    """Return ``DEFAULTS`` without keys that this backend requires or forbids."""
    if _has_external_router(backend):
        return {**DEFAULTS, "scheduler": pair_name(EXTERNAL, "fcfs")}
    if _has_profile(backend):
        return dict(DEFAULTS)
    defaults = {key: value for key, value in DEFAULTS.items() if key not in ("gpu", "model")}
    if not _is_managed(backend):
        defaults |= {"model": AS_SERVED} | dict.fromkeys(SCHEDULING, AS_SERVED)
    return defaults


def fitting(file: Mapping[str, Any], backend: Chosen) -> dict[str, Any]:
    """Return the file without its backend and the values that only that backend supports."""
    was = resolve_backend(None, file.get("backend"))
    dropped = {"backend"}
    if type(was) is not type(backend) and not (_has_profile(was) and _has_profile(backend)):
        dropped |= {"gpu", "model"}
    if _is_managed(was) != _is_managed(backend):
        dropped |= set(SCHEDULING)
    if _has_external_router(was) != _has_external_router(backend):
        dropped |= {"scheduler", "router"}
    return {key: value for key, value in file.items() if key not in dropped}


def served(backend: Chosen, draft: Mapping[str, object]) -> dict[str, str]:
    """Resolve the draft's GPU, model and scheduler. Raises UsageError naming what is wrong."""
    with about("gpu", "model", "backend.kind"):
        hardware = _hardware(backend, draft)
    with about(*SCHEDULING, "backend.kind", "backend.schedule_policy", "backend.router_command"):
        return hardware | _scheduling(backend, draft)


def check_scheduling(backend: Chosen, assignments: Mapping[str, Any]) -> None:
    """Raise UsageError for a scheduler's parameter if no fairbench scheduler runs."""
    if _is_managed(backend):
        return
    known = params_classes()
    for key, value in assignments.items():
        if key.partition(".")[0] in known:
            raise _as_it_is(key, value).of(key)


def _as_it_is(key: str, value: Any) -> UsageError:
    return UsageError(
        f"{key} = {value!r}: cannot be set with base_url, because a running endpoint is "
        "benchmarked as it is; leave it out"
    )


def _has_profile(backend: Chosen) -> bool:
    return backend is None or backend.has_profile


def _is_managed(backend: Chosen) -> bool:
    return backend is None or backend.is_managed


def _has_external_router(backend: Chosen) -> bool:
    return backend is not None and backend.external_router is not None


def _hardware(backend: Chosen, draft: Mapping[str, object]) -> dict[str, str]:
    if backend is None or backend.has_profile:
        with about("gpu", "model"):
            return _profile(text_of(draft, "gpu"), text_of(draft, "model"))
    if draft.get("gpu", NO_PROFILE) != NO_PROFILE:
        raise UsageError(
            f"gpu = {draft['gpu']!r}: backend {backend.kind} runs on real hardware and takes no "
            "timing profile"
        )
    if "model" not in draft:
        raise UsageError(
            f"model: missing; backend {backend.kind} needs --model, a path or a name on "
            "the Hugging Face hub"
        )
    return {"gpu": NO_PROFILE}


def _profile(gpu: str, model: str) -> dict[str, str]:
    """Return the profile's id and model; the model of a profile file wins over the default."""
    profile_id = resolve_profile(gpu, model).profile_id
    found = profile_id.split("/")[1]
    if not is_profile_file(gpu):
        return {"gpu": profile_id, "model": found}
    if model != DEFAULTS["model"] and canonical_model(model, {found}) != found:
        raise UsageError(f"model = {model!r}: must be {found!r}, the model of timing profile {gpu}")
    return {"gpu": profile_id, "model": found}


def _scheduling(backend: Chosen, draft: Mapping[str, object]) -> dict[str, str]:
    if _is_managed(backend):
        router, local = parts_of(draft)
        _check_router(backend, router)
        if backend is not None and backend.own_policy is not None:
            local = _stock(backend.own_policy, draft)
        return {"scheduler": pair_name(router, local), "router": router, "local": local}
    for key in SCHEDULING:
        if draft[key] != AS_SERVED:
            raise _as_it_is(key, draft[key])
    return {}


def _check_router(backend: Chosen, router: str) -> None:
    if _has_external_router(backend) and router != EXTERNAL:
        raise UsageError(
            f"router = {router!r}: cannot be set with router_command, which starts "
            "another router; name the local scheduler with --local"
        )
    if router == EXTERNAL and not _has_external_router(backend):
        raise UsageError(
            f"router = {router!r}: needs router_command, the command that starts this router"
        )


def _stock(policy: str, draft: Mapping[str, object]) -> str:
    """Return the server's own policy as the local scheduler. Raises UsageError for others."""
    if draft.get("local", policy) != policy:
        raise UsageError(
            f"local = {draft['local']!r}: cannot be combined with schedule_policy = "
            f"{policy!r}, the server's own scheduling; give only one of them"
        )
    return policy
