"""Checks for settings that the backend of an experiment does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.config.settings import ENGINE, MACHINE
from fairbench.config.spec import ExperimentSpec
from fairbench.errors import UsageError
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.schedulers.params import own_settings


def check_engine(
    backend: BackendConfig | None, engine: str | None, settings: Mapping[str, Any]
) -> None:
    """Raise UsageError for an engine, or an engine setting, that is not simulated."""
    if backend is not None and engine is not None:
        raise UsageError(
            f"engine = {engine!r}: backend {backend.kind} has its own engine; leave engine out"
        )
    chosen = engine or DEFAULT_ENGINE
    for other, kind in ENGINES.items():
        given = own_settings(kind.part, settings) if other != chosen else {}
        for name, value in given.items():
            if value != getattr(kind.params(), name):
                raise UsageError(
                    f"{kind.part}.{name} = {value!r}: engine {chosen} has no such "
                    "setting; leave it out"
                )


def check_machine(
    backend: BackendConfig | None, settings: Mapping[str, Any], usual: Mapping[str, Any]
) -> None:
    """Raise UsageError for a changed machine setting that nothing supports.

    Unchanged is also what is ``usual`` for the workload.
    """
    if backend is None:
        return
    for part, params in MACHINE.items():
        default = params()
        for name, value in own_settings(part, settings).items():
            obeyed = part == ENGINE and name not in backend.disobeyed
            unchanged = value in (getattr(default, name), usual.get(f"{part}.{name}"))
            if not unchanged and not obeyed:
                raise UsageError(
                    f"{part}.{name} = {value!r}: backend {backend.kind} has no such "
                    "setting; leave it out"
                )


def check_behaviours(spec: ExperimentSpec) -> None:
    """Raise UsageError for behaviour of simulated clients if servers are real.

    They react to what they see, and repeat the beginning alone of an answer that went on.
    """
    if spec.backend is None:
        return
    plans = spec.client_plans()
    found = {
        "reaction": any(plan.reaction for plan in plans),
        "output_multiple": any(
            plan.disguise is not None and plan.disguise.output_multiple > 1 for plan in plans
        ),
    }
    for key, there in found.items():
        if there:
            kind = spec.backend.kind
            raise UsageError(
                f"misbehaving.{key}: not supported by backend {kind}; only simulated "
                "clients support it"
            )
