"""The number of routers that share the workers of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.errors import UsageError
from fairbench.schedulers.params import make_params, own_settings
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams

SERVED = ("every_s", "ahead_tok_s", "forget_s")  # of the parameters, before real servers


def with_routers(draft: Mapping[str, Any], backend: BackendConfig | None) -> dict[str, Any]:
    """Return the draft, without the key if there is a single router.

    Raises UsageError for a number of routers before real or emulated servers.
    """
    number = draft.get(ROUTERS)
    if number == 1 and not isinstance(number, bool):
        return {key: value for key, value in draft.items() if key != ROUTERS}
    if number is not None and backend is not None:
        raise UsageError(
            f"routers = {number!r}: must be 1, because only simulated runs support several routers"
        )
    return dict(draft)


def routers_parts(draft: Mapping[str, Any]) -> tuple[str, ...]:
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
