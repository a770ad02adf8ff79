"""The gateway of an experiment: a policy and a detector before the router, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.config.spec import Draft
from fairbench.errors import UsageError, about
from fairbench.hardware.catalogue import resolve_profile
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.gateway.registry import (
    ADMISSION,
    DEFAULT_DETECTOR,
    GATEWAY,
    NO_GATEWAY,
    OFF,
    UNKNOWN_COSTS,
    AdmissionParams,
    GatewayParams,
    detector_class,
    policy_class,
)
from fairbench.schedulers.load_cap import AUTO
from fairbench.schedulers.params import as_settings, make_params, own_settings

GATEWAY_KEYS = ("gateway", "saturation")
ADMISSION_MODEL = "llama-3.1-8b"  # model of profiles that are named by their GPU alone
SERVED_DETECTOR = "concurrency"  # default of `serve`, because it works with any engine
MOST_REQUESTS = f"{SERVED_DETECTOR}.requests"  # limit on requests at a worker
HEADROOM = f"{SERVED_DETECTOR}.headroom"  # limit on further requests that wait at the worker
# of every client: in tokens of context, in requests, in tokens of reserved memory
CLIENT_LIMITS = tuple(f"{GATEWAY}.client_{of}" for of in ("limit", "requests", "memory"))
CLIENT_RESERVE = f"{GATEWAY}.client_reserve"
DEFAULT_RESERVE = 0.25  # default of `serve`; a client alone has four fifths of the workers
SERVED_OUTPUTS = {f"{GATEWAY}.outputs": "ahead"}  # default of `serve`, unless another value is set


def gateway_of(draft: Mapping[str, object]) -> dict[str, str]:
    """Return the draft's gateway policy and detector, or nothing without a gateway.

    Raises UsageError for an unknown name, or for a detector without a gateway.
    """
    if "saturation" in draft and "gateway" not in draft:
        raise UsageError(f"saturation = {draft['saturation']!r}: needs a gateway; set gateway, too")
    policy = draft.get("gateway", NO_GATEWAY)
    if policy == NO_GATEWAY:
        return {}
    detector = draft.get("saturation", DEFAULT_DETECTOR)
    found = {}
    for key, name in (("gateway", policy), ("saturation", detector)):
        if not isinstance(name, str):
            raise UsageError(f"{key} = {name!r}: must be a text")
        found[key] = name
    policy_class(found["gateway"])
    detector_class(found["saturation"])
    return found


def served_admission(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return every admission control parameter in front of real servers as NAME.PARAM.

    The result is empty without admission control. Raises UsageError for a wrong value, and if no
    timing profile of the workers is set.
    """
    if not own_settings(ADMISSION, settings):
        return {}
    params = make_params(ADMISSION, AdmissionParams, settings)
    if params.is_on:
        admission_profile(params)
    return as_settings(ADMISSION, params)


def admission_profile(params: AdmissionParams) -> TimingProfile:
    """Return the timing profile of real workers: an id, or a GPU with the default model.

    Raises UsageError for an unknown or missing profile.
    """
    gpu, _, rest = params.profile.partition("/")
    if not gpu:
        raise UsageError(
            f"{ADMISSION}.policy = {params.policy!r}: set {ADMISSION}.profile, too: the timing "
            "profile of the workers, such as a100 (see `list profiles`)"
        )
    return resolve_profile(params.profile, rest.split("/")[0] or ADMISSION_MODEL)


def settle_gateway(draft: Draft, backend: BackendConfig | None) -> None:
    """Set the draft's policy and detector, or neither without a gateway. Raises UsageError."""
    with about(*GATEWAY_KEYS, "admission.policy", "admission.profile", "backend.kind"):
        gateway = gateway_of(draft)
        _check_gateway(gateway, draft.settings, backend)
    for key in GATEWAY_KEYS:
        draft.pop(key, None)
    draft.update(gateway)


def _check_gateway(
    gateway: Mapping[str, str], settings: Mapping[str, object], backend: BackendConfig | None
) -> None:
    """Raise UsageError if a gateway is set for real or emulated servers.

    The error is also raised for admission control without a router of ours, without known costs of
    workers, or with an emulator's clock that is not the router's.
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


def served_gateway(policy: str, saturation: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter of a gateway in front of real servers as NAME.PARAM.

    Raises UsageError for an unknown name, a wrong value, or a value that real servers rule out.
    """
    owners: dict[str, Any] = {
        policy: policy_class(policy).Params,
        saturation: detector_class(saturation).Params,
        GATEWAY: GatewayParams,
    }
    given, resolved = {**SERVED_OUTPUTS, **settings}, dict[str, Any]()
    for owner, params in owners.items():
        resolved |= as_settings(owner, make_params(owner, params, given))
    if resolved[f"{GATEWAY}.order"] == "longest-prefix":
        raise UsageError(
            "gateway.order = 'longest-prefix': serve does not support this order, "
            "because it does not match queued requests with the workers' caches; choose "
            "from fcfs, edf"
        )
    if resolved.get(f"{GATEWAY}.client_limit") == AUTO:
        raise UsageError(UNKNOWN_COSTS)
    return resolved
