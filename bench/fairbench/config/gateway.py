"""The gateway of an experiment: a policy and a detector before the router, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.errors import UsageError
from fairbench.schedulers.gateway.registry import (
    DEFAULT_DETECTOR,
    GATEWAY,
    NO_GATEWAY,
    detector_class,
    policy_class,
)

GATEWAY_KEYS = ("gateway", "saturation")


def gateway_of(draft: Mapping[str, Any]) -> dict[str, str]:
    """The draft's policy and detector, nothing if it has none.

    Raises UsageError for an unknown name, or for a detector where nothing is said of a gateway.
    """
    if "saturation" in draft and "gateway" not in draft:
        raise UsageError(f"saturation = {draft['saturation']!r}: of no gateway: name one, too")
    policy = draft.get("gateway", NO_GATEWAY)
    if policy == NO_GATEWAY:
        return {}
    detector = draft.get("saturation", DEFAULT_DETECTOR)
    for key, name in (("gateway", policy), ("saturation", detector)):
        if not isinstance(name, str):
            raise UsageError(f"{key} = {name!r}: must be a text")
    policy_class(policy)
    detector_class(detector)
    return {"gateway": policy, "saturation": detector}


def gateway_parts(draft: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of the draft's gateway that have parameters."""
    gateway = gateway_of(draft)
    return (*gateway.values(), GATEWAY) if gateway else ()


def check_gateway(gateway: Mapping[str, str], backend: BackendConfig | None) -> None:
    """Raise UsageError for a gateway before real or emulated servers."""
    if gateway and backend is not None:
        raise UsageError(f"gateway = {gateway['gateway']!r}: only simulated runs have one")
