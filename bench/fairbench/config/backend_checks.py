"""The backend of an experiment, and the settings and options that it would not obey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fairbench.config.backend import KINDS, BackendConfig
from fairbench.config.flags.flag import SIM
from fairbench.config.settings import ENGINE, MACHINE
from fairbench.config.spec import ExperimentSpec
from fairbench.errors import UsageError, explain, keys_of, unknown_name
from fairbench.schedulers.params import own_settings


def resolve_backend(given: Any, stored: Any) -> BackendConfig | None:
    """Merge the backend of flags with an experiment file's table; None means the simulator.

    If the kinds differ, the file's table is dropped. Raises UsageError naming the key.
    """
    given, stored = _table(given), _table(stored)
    kind = given.get("kind", "endpoint" if "base_url" in given else stored.get("kind", SIM))
    if kind != SIM and kind not in KINDS:
        raise unknown_name("backend", str(kind), (SIM, *KINDS)).of("backend.kind")
    merged = {**(stored if stored.get("kind") == kind else {}), **given, "kind": kind}
    known = KINDS[kind].model_fields if kind in KINDS else {"kind"}
    for key, value in merged.items():
        if key not in known:
            raise _misplaced(key, value, kind).of(f"backend.{key}", "backend.kind")
    if kind == SIM:
        return None
    try:
        return KINDS[kind].model_validate(merged)
    except ValidationError as error:
        raise UsageError(explain(error, "backend")).of(*keys_of(error, "backend")) from None


def _table(value: Any) -> Mapping[str, Any]:
    """Return a backend as a table; ``backend = "sglang"`` is short for one with only the kind."""
    if isinstance(value, str):
        return {"kind": value}
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise UsageError(f"backend = {value!r}: must be a name or a table")


def _misplaced(key: str, value: Any, kind: str) -> UsageError:
    owners = [name for name, cls in KINDS.items() if key in cls.model_fields]
    if owners:
        other = "; or give --trace" if key == "time_scale" else ""
        where = f"only for backend {' or '.join(owners)}, not {kind}{other}"
        return UsageError(f"{key} = {value!r}: {where}")
    return unknown_name(f"key of backend {kind}", key, KINDS[kind].model_fields)


def check_no_engine(backend: BackendConfig, engine: str | None) -> None:
    """Raise UsageError for a simulated engine together with real servers."""
    if engine is not None:
        own = f"engine = {engine!r}: backend {backend.kind} has its own engine; leave engine out"
        raise UsageError(own).of("engine", "backend.kind")


def check_machine(
    backend: BackendConfig, settings: Mapping[str, Any], usual: Mapping[str, Any]
) -> None:
    """Raise UsageError for a changed machine setting that nothing supports.

    Values that are ``usual`` for the workload also count as unchanged.
    """
    for part, params in MACHINE.items():
        default = params()
        for name, value in own_settings(part, settings).items():
            obeyed = part == ENGINE and name not in backend.disobeyed
            unchanged = value in (getattr(default, name), usual.get(f"{part}.{name}"))
            if not unchanged and not obeyed:
                raise UsageError(
                    f"{part}.{name} = {value!r}: backend {backend.kind} has no such "
                    "setting; leave it out"
                ).of(f"{part}.{name}", "backend.kind")


def check_behaviours(spec: ExperimentSpec, backend: BackendConfig) -> None:
    """Raise UsageError for behaviour that only simulated clients support, as servers are real.

    They react to what they see, and repeat only the beginning of a longer answer.
    """
    plans = spec.client_plans()
    found = {
        "reaction": any(plan.reaction for plan in plans),
        "output_multiple": any(
            plan.disguise is not None and plan.disguise.output_multiple > 1 for plan in plans
        ),
    }
    for key, there in found.items():
        if there:
            raise UsageError(
                f"misbehaving.{key}: not supported by backend {backend.kind}; only simulated "
                "clients support it"
            )


def check_run_options(
    spec: ExperimentSpec,
    *,
    headers: bool,
    server_python: bool,
    launcher: bool,
    driver_launcher: bool,
    drivers: int,
) -> None:
    """Raise UsageError for a given option that the experiment's backend does not support."""
    if headers and not obeys(spec.backend, "headers"):
        raise UsageError("--header and --api-key-file need --base-url")
    if server_python and not obeys(spec.backend, "server_python"):
        raise python_misplaced()
    if launcher and not obeys(spec.backend, "launcher"):
        raise UsageError(f"--launcher needs --backend {kinds_with('launcher')}")
    flag = "--driver-launcher" if driver_launcher else f"--drivers {drivers}"
    if (driver_launcher or drivers > 1) and spec.backend is None:
        raise UsageError(
            f"{flag} needs real servers, because a simulation has no drivers; give --backend or "
            "--base-url"
        )
    if drivers == 1 or spec.backend is None:
        return
    if drivers > (clients := len(spec.client_plans())):
        raise UsageError(f"--drivers {drivers}: must be at most the number of clients, {clients}")
    if spec.backend.max_concurrency is not None:
        raise UsageError(
            "--max-concurrency cannot be combined with --drivers, which do not share a count"
        )


def obeys(backend: BackendConfig | None, option: str) -> bool:
    """Return whether the backend (None: the simulator) supports an option of ``LiveOptions``."""
    return backend is not None and option in backend.run_options


def python_misplaced() -> UsageError:
    """Return the error for ``--server-python`` if no server would be started with it."""
    return UsageError(f"--server-python needs --backend {kinds_with('server_python')}")


def kinds_with(option: str) -> str:
    """Return the backends that support an option of ``LiveOptions``, in words."""
    return " or ".join(kind for kind, cls in KINDS.items() if option in cls.run_options)
