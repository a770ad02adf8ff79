"""Checks that a backend supports the timing profile, model, scheduler and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fairbench.config.backend import AS_SERVED, EXTERNAL, NO_PROFILE, BackendConfig, backend_kinds
from fairbench.config.defaults import DEFAULTS, has_own_code, pair_of, text_of
from fairbench.config.parse_flags import ENDPOINT, SIM
from fairbench.config.settings import ENGINE, MACHINE
from fairbench.config.spec import ExperimentSpec
from fairbench.errors import UsageError, about, explain, keys_of, unknown_name
from fairbench.hardware.catalogue import canonical_model, is_profile_file, resolve_profile
from fairbench.hardware.engine_params import releases_from
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.schedulers.params import own_settings
from fairbench.schedulers.registry import local_class, pair_name, params_classes


def resolve_backend(given: Any, stored: Any) -> BackendConfig | None:
    """Merge the backend that flags give with the backend of a file; return None for the simulator.

    If the flags name another kind of backend than the file, the file's backend is ignored. Raises
    UsageError, which names the key, if a key or a value of the backend is wrong.
    """
    given, stored = _backend_table(given), _backend_table(stored)
    kind = given.get("kind", ENDPOINT if "base_url" in given else stored.get("kind", SIM))
    kinds: Mapping[str, type[BackendConfig]] = {} if kind == SIM else backend_kinds()
    if kind != SIM and kind not in kinds:
        raise unknown_name("backend", str(kind), (SIM, *kinds)).of("backend.kind")
    merged = {**(stored if stored.get("kind") == kind else {}), **given, "kind": kind}
    known = {"kind"} if kind == SIM else kinds[kind].model_fields
    for key, value in merged.items():
        if key not in known:
            raise _misplaced(key, value, kind).of(f"backend.{key}", "backend.kind")
    if kind == SIM:
        return None
    try:
        return kinds[kind].model_validate(merged)
    except ValidationError as error:
        raise UsageError(explain(error, "backend")).of(*keys_of(error, "backend")) from None


def _backend_table(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"kind": value}
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise UsageError(f"backend = {value!r}: must be a name or a table")


def _misplaced(key: str, value: Any, kind: str) -> UsageError:
    kinds = backend_kinds()
    owners = [name for name, cls in kinds.items() if key in cls.model_fields]
    if owners:
        other = "; or give --trace" if key == "time_scale" else ""
        where = f"only for backend {' or '.join(owners)}, not {kind}{other}"
        return UsageError(f"{key} = {value!r}: {where}")
    return unknown_name(f"key of backend {kind}", key, kinds[kind].model_fields)


def check_no_engine(backend: BackendConfig, engine: str | None) -> None:
    """Raise UsageError if an experiment on real servers names a simulated engine."""
    if engine is not None:
        own = f"engine = {engine!r}: backend {backend.kind} has its own engine; leave engine out"
        raise UsageError(own).of("engine", "backend.kind")


def check_machine(
    backend: BackendConfig, settings: Mapping[str, Any], usual: Mapping[str, Any]
) -> None:
    """Raise UsageError if the user changed a machine setting that the backend does not support.

    ``usual`` contains the workload's defaults; a value that equals its default counts as unchanged.
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
    """Raise UsageError if clients behave in a way that only a simulation supports.

    Clients of real servers cannot react to the state of the cluster, and their prompts cannot
    contain only the first part of an earlier answer.
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
    """Raise UsageError if an option is given that the experiment's backend does not support."""
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
            "--max-concurrency cannot be combined with --drivers: drivers do not count "
            "one another's requests in flight"
        )


def obeys(backend: BackendConfig | None, option: str) -> bool:
    """Return whether a backend supports an option of ``LiveFlags``; the simulator supports none."""
    return backend is not None and option in backend.run_options


def python_misplaced() -> UsageError:
    """Return the error for ``--server-python`` in an experiment that starts no server."""
    return UsageError(f"--server-python needs --backend {kinds_with('server_python')}")


def kinds_with(option: str) -> str:
    """Return a text that lists the backends with support for an option of ``LiveFlags``."""
    return " or ".join(kind for kind, cls in backend_kinds().items() if option in cls.run_options)


Chosen = BackendConfig | None

SCHEDULING = ("scheduler", "router", "local")


def defaults_of(backend: Chosen) -> dict[str, Any]:
    """Return the default values, ``DEFAULTS``, as they apply to this kind of backend."""
    if _has_external_router(backend):
        return {**DEFAULTS, "scheduler": pair_name(EXTERNAL, "fcfs")}
    if _has_profile(backend):
        return dict(DEFAULTS)
    defaults = {key: value for key, value in DEFAULTS.items() if key not in ("gpu", "model")}
    if not _is_managed(backend):
        defaults |= {"model": AS_SERVED} | dict.fromkeys(SCHEDULING, AS_SERVED)
    return defaults


def without_unsupported(file: Mapping[str, Any], backend: Chosen) -> dict[str, Any]:
    """Return an experiment file without its backend and the values that ``backend`` cannot use."""
    was = resolve_backend(None, file.get("backend"))
    dropped = {"backend"}
    if type(was) is not type(backend) and not (_has_profile(was) and _has_profile(backend)):
        dropped |= {"gpu", "model"}
    if _is_managed(was) != _is_managed(backend):
        dropped |= set(SCHEDULING)
    if _has_external_router(was) != _has_external_router(backend):
        dropped |= {"scheduler", "router"}
    return {key: value for key, value in file.items() if key not in dropped}


def resolve_served(backend: Chosen, draft: Mapping[str, object]) -> dict[str, str]:
    """Check the GPU, model and scheduler of an experiment on servers, and fill in missing values.

    Raises UsageError if a value is missing or not supported.
    """
    with about("gpu", "model", "backend.kind"):
        hardware = _hardware(backend, draft)
    with about(*SCHEDULING, "backend.kind", "backend.schedule_policy", "backend.router_command"):
        return hardware | _scheduling(backend, draft)


def check_scheduling(backend: Chosen, assignments: Mapping[str, Any]) -> None:
    """Raise UsageError for a scheduler's parameter if the servers run no scheduler of fairbench."""
    if _is_managed(backend):
        return
    known = params_classes()
    for key, value in assignments.items():
        if key.partition(".")[0] in known:
            raise _as_it_is(key, value).of(key)


def check_order(
    backend: Chosen, engine: str | None, draft: Mapping[str, object], settings: Mapping[str, Any]
) -> None:
    """Raise UsageError for a local scheduler that the engine or its release cannot run.

    Only some engines can run SGLang's policies, or schedulers that choose between prefill and
    decode.
    """
    if not _is_managed(backend) or (backend is not None and backend.own_policy is not None):
        return
    if has_own_code(draft):
        return
    local = text_of(draft, "local")
    if local_class(local).decodes_first is not None:
        _check_choice(backend, engine, local, settings)
    if (since := local_class(local).sglang_since) is None:
        return
    if not _has_profile(backend):
        own = f"a policy of SGLang itself: use backend sglang, with --schedule-policy {local}"
        raise UsageError(f"local = {local!r}: {own}").of("local", "scheduler", "backend.kind")
    if (engine or DEFAULT_ENGINE) != DEFAULT_ENGINE:
        own = f"engine {engine} has no such order; leave engine out (default: {DEFAULT_ENGINE})"
        raise UsageError(f"local = {local!r}: {own}").of("local", "scheduler", "engine")
    having, release = releases_from(since), settings.get("engine.release")
    if release is not None and release not in having:
        raise UsageError(
            f"local = {local!r}: SGLang {release} has no such order; engine.release must be "
            f"{' or '.join(having)}"
        ).of("engine.release", "local", "scheduler")


def _check_choice(
    backend: Chosen, engine: str | None, local: str, settings: Mapping[str, Any]
) -> None:
    said = f"local = {local!r}: chooses between prefill and decode steps"
    if not _has_profile(backend) or (engine or DEFAULT_ENGINE) != DEFAULT_ENGINE:
        raise UsageError(f"{said}, which only the simulated {DEFAULT_ENGINE} supports").of(
            "local", "scheduler", "engine", "backend.kind"
        )
    if settings.get(mixed := "engine.enable_mixed_chunk"):
        raise UsageError(f"{said}, but a mixed step runs both; leave {mixed} out").of(
            mixed, "local", "scheduler"
        )


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
            f"gpu = {draft['gpu']!r}: backend {backend.kind} runs on real hardware without a "
            "timing profile; leave gpu out"
        )
    if "model" not in draft:
        raise UsageError(
            f"model: missing; backend {backend.kind} needs --model, a path or a name on "
            "the Hugging Face hub"
        )
    return {"gpu": NO_PROFILE}


def _profile(gpu: str, model: str) -> dict[str, str]:
    """Return a timing profile's id and model; raise UsageError if a file has another model."""
    profile_id = resolve_profile(gpu, model).profile_id
    found = profile_id.split("/")[1]
    if not is_profile_file(gpu):
        return {"gpu": profile_id, "model": found}
    if model != DEFAULTS["model"] and canonical_model(model, {found}) != found:
        raise UsageError(f"model = {model!r}: must be {found!r}, the model of timing profile {gpu}")
    return {"gpu": profile_id, "model": found}


def _scheduling(backend: Chosen, draft: Mapping[str, object]) -> dict[str, str]:
    if _is_managed(backend):
        router, local = pair_of(draft)
        _check_router(backend, router)
        if backend is not None and backend.own_policy is not None:
            if draft.get("local", backend.own_policy) != backend.own_policy:
                raise UsageError(
                    f"local = {draft['local']!r}: cannot be combined with schedule_policy = "
                    f"{backend.own_policy!r}, the server's own scheduling; give only one of them"
                )
            local = backend.own_policy
        return {"scheduler": pair_name(router, local), "router": router, "local": local}
    for key in SCHEDULING:
        if draft[key] != AS_SERVED:
            raise _as_it_is(key, draft[key])
    return {}


def _check_router(backend: Chosen, router: str) -> None:
    if _has_external_router(backend) and router != EXTERNAL:
        raise UsageError(
            f"router = {router!r}: cannot be combined with router_command, which starts its own "
            "router; leave the router out, and name only the local scheduler with --local"
        )
    if router == EXTERNAL and not _has_external_router(backend):
        raise UsageError(
            f"router = {router!r}: needs router_command, the command that starts this router"
        )
