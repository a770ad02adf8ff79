"""Routers in number: how many share the fleet of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.errors import UsageError
from fairbench.schedulers.params import make_params, own_settings
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams

SERVED = ("every_s", "ahead_tok_s", "forget_s")  # of the parameters, before real servers


def with_routers(draft: Mapping[str, Any], backend: BackendConfig | None) -> dict[str, Any]:
    """The draft, in which a single router is not spelled out.

    Raises UsageError for several before real or emulated servers.
    """
    number = draft.get(ROUTERS)
    if number == 1 and not isinstance(number, bool):
        return {key: value for key, value in draft.items() if key != ROUTERS}
    if number is not None and backend is not None:
        raise UsageError(f"routers = {number!r}: only simulated runs have several")
    return dict(draft)


def routers_parts(draft: Mapping[str, Any]) -> tuple[str, ...]:
    """What has parameters because there are several routers."""
    return () if draft.get(ROUTERS, 1) == 1 else (ROUTERS,)


def served_routers(settings: Mapping[str, Any]) -> RoutersParams:
    """The parameters of a real router that has peers. Raises UsageError for wrong ones."""
    for name in own_settings(ROUTERS, settings):
        if name not in SERVED:
            raise UsageError(f"{ROUTERS}.{name}: simulated only; peers have {', '.join(SERVED)}")
    return make_params(ROUTERS, RoutersParams, settings)
