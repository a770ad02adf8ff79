"""Conversion of user input to an experiment; flags override a file, which overrides defaults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairbench import metrics, workloads
from fairbench.config import cluster, defaults, serving
from fairbench.config.backend import ARGS
from fairbench.config.cluster import KEYS as CLUSTER_KEYS
from fairbench.config.flags import RUN
from fairbench.config.origins import chosen_part, given_values, with_given
from fairbench.config.own_code import settings_of_flags
from fairbench.config.parse_flags import PlacedFlags, check_names, place_flags
from fairbench.config.settings import (
    check_engine_settings,
    flat_settings,
    params_by_part,
    resolve_settings,
)
from fairbench.config.spec import GIVEN, Draft, ExperimentSpec, Origin, without_given
from fairbench.errors import DataError, UsageError, about, explain, keys_of, unknown_name
from fairbench.files.formats import INTEGERS, read_toml
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.schedulers.eviction.registry import MEMORY
from fairbench.schedulers.gateway.registry import ADMISSION, needs_sessions
from fairbench.schedulers.params import own_settings
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import expected_programs
from fairbench.workloads.programs import program_class

if TYPE_CHECKING:
    from fairbench.workloads.traces.read import TraceParams

# A run has at most ``MAX_PROGRAMS`` programs, so that its records fit into memory.
MAX_PROGRAMS = 2_000_000

# The values of the keys ``RULING`` decide the defaults of other keys.
RULING = frozenset(
    {"workload", "scenario", "scheduler", "router", "local", "gpu", "model"}
    | {
        "duration_s",
        "num_programs",
        "clients",
        "engine",
        cluster.ENGINE_CODE,
        "routers",
        "preset",
        cluster.EVICTION,
        *cluster.GATEWAY_KEYS,
    }
)

# The values of the keys ``SENT`` determine which programs the clients send.
SENT = ("workload", "scenario", "clients", "num_programs", "request_rate", "duration_s", "dp")


def read_experiment(path: Path) -> dict[str, Any]:
    """Read an experiment file as tables.

    Raises DataError, which names the file and the wrong key or line.
    """
    if path.name.removesuffix(".gz").endswith((".csv", ".jsonl")):
        raise DataError(f"{path}: must be an experiment in TOML; for a trace, write --trace {path}")
    data = read_toml(path, str(path))
    for key in data:
        if key not in ExperimentSpec.model_fields:
            owner = key.partition(".")[0]
            if owner in {*params_by_part(), *workloads.workload_names()}:
                raise DataError(f"{path}: {key}: parameters belong in the table [settings.{owner}]")
            raise DataError(f"{path}: {unknown_name('key', key, ExperimentSpec.model_fields)}")
    if not isinstance(data.get("settings", {}), dict):
        raise DataError(f"{path}: settings: must be a table, such as [settings.dlpm]")
    return data


def read_spec(path: Path) -> ExperimentSpec:
    """Return the experiment in a file, completed with defaults.

    Raises DataError if the file is invalid.
    """
    return resolve({}, {}, read_experiment(path), path=path)


def with_new_defaults(file: Mapping[str, Any], path: Path) -> ExperimentSpec:
    """Return the spec of a stored experiment, with the defaults of this version of fairbench.

    New defaults do not replace values that the user chose. Raises DataError, which names the file.
    """
    return resolve({}, {}, file, path=path, new_defaults=True)


def resolve(
    flags: Mapping[str, Any],
    assignments: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
    *,
    path: Path | None = None,
    new_defaults: bool = False,
) -> ExperimentSpec:
    """Return the full spec of an experiment from flags, settings and a file.

    ``flags`` override keys of the file, and ``assignments`` override its settings. ``path`` is the
    path from which ``file`` was read. If ``new_defaults`` is True, only values that the user chose
    are taken from a stored file. Raises UsageError for a wrong flag, and DataError for a wrong
    value in the file. The message names the field, the value and the allowed values.
    """
    draft = Draft(flags, assignments or {})
    try:
        return _resolve(draft, file or {}, new_defaults=new_defaults)
    except UsageError as error:
        if error.keys and error.keys <= draft.of_preset:
            text = str(error)
            for key in error.keys & defaults.DEFAULTS.keys():
                other = f"give {key} = {defaults.DEFAULTS[key]}, or leave the preset out"
                text = text.replace(f"leave {key} out", other)
            raise DataError(f"preset {draft['preset']}: {text}") from None
        if path is not None and error.is_of_file(draft.flagged):
            raise DataError(f"{path}: {error}") from None
        raise


def _resolve(draft: Draft, file: Mapping[str, Any], *, new_defaults: bool) -> ExperimentSpec:
    backend = None
    if "backend" in draft or "backend" in file:
        backend = serving.resolve_backend(draft.get("backend"), file.get("backend"))
    given = None
    if file:
        file = serving.without_unsupported(with_given(file), backend)
    with suppress(UsageError):  # A later check reports the invalid value.
        given = given_values(draft.of_flags(), draft.settings.of_flags(), file)
    if file and (new_defaults or not RULING.isdisjoint(draft)):
        file = chosen_part(file, other_workload="workload" in draft)
    file = without_given(file)
    draft.fill(file, Origin.FILE)
    draft.settings.fill(flat_settings(defaults.table_of(draft, "settings")), Origin.FILE)
    preset = _fill_usual(draft, backend)
    draft |= serving.resolve_served(backend, draft)
    settings = dict(draft.settings)
    admission = (ADMISSION,) if own_settings(ADMISSION, settings) else ()
    if admission or not draft.keys().isdisjoint(cluster.GATEWAY_KEYS):
        cluster.settle_gateway(draft, backend)
    if not CLUSTER_KEYS.isdisjoint(draft):
        cluster.settle_cluster(draft, backend, defaults.engine_of(draft))
    memory = (
        cluster.memory_parts(draft, backend, settings) if own_settings(MEMORY, settings) else ()
    )
    workload, resolved = resolve_settings(
        defaults.read_workload(draft["workload"]),
        defaults.text_of(draft, "scenario"),
        defaults.used_parts(draft) + admission + memory,
        settings,
    )
    if preset is not None:
        with about("preset", "engine", "workload"):
            defaults.check_preset(preset, draft, workload.name)
        workload = defaults.at_rate_of(preset, workload)
    engine = _checked_engine(draft, backend, workload, resolved)
    draft |= {"backend": backend, "workload": workload, "engine": engine}
    draft.fill(defaults.workload_defaults(draft, workload), Origin.WORKLOAD)
    draft |= _tables(draft, file, workload, resolved) | {GIVEN: given}
    try:
        spec = ExperimentSpec.model_validate(dict(draft))
    except ValidationError as error:
        raise UsageError(explain(error)).of(*keys_of(error)) from None
    for key, value in {**draft, **draft.settings}.items():
        if isinstance(value, int) and value not in INTEGERS:
            raise UsageError(f"{key} = {value}: must fit into 64 bits").of(key)
    with about(*SENT):
        check_size(spec)
        check_sessions(spec)
        if backend is not None:
            serving.check_behaviours(spec, backend)
    return spec


def _fill_usual(draft: Draft, backend: serving.Chosen) -> defaults.Preset | None:
    """Fill a draft experiment with the preset's values, the workload's GPU, and defaults.

    Return the preset, or None if no preset is given.
    """
    workload = defaults.read_workload(draft.get("workload", defaults.DEFAULTS["workload"]))
    preset = None
    machine = {} if backend is not None else defaults.machine_of_workload(workload)
    if (ref := draft.get("preset")) is not None:
        with about("preset", "backend.kind"):
            preset = defaults.preset_for(str(ref), backend)
        draft.fill(preset.experiment, Origin.PRESET)
        draft.settings.fill(preset.settings, Origin.PRESET)
    draft.fill(machine | {"scenario": defaults.usual_scenario(workload)}, Origin.WORKLOAD)
    draft.fill(serving.defaults_of(backend), Origin.DEFAULT)
    return preset


def _checked_engine(
    draft: Draft, backend: serving.Chosen, workload: WorkloadSpec, resolved: Mapping[str, Any]
) -> str | None:
    """Check that every setting belongs to the simulated engine; return the name of the engine."""
    engine, settings = defaults.engine_of(draft), dict(draft.settings)
    if backend is not None:
        own = workload.scheduler_settings(defaults.text_of(draft, "scenario"))
        serving.check_machine(backend, {**settings, **resolved}, own)
        serving.check_no_engine(backend, engine)
    check_engine_settings(engine, settings)
    if "prefill" in draft:
        cluster.check_disaggregated(engine, {**settings, **resolved})
    serving.check_scheduling(backend, draft.settings.of_flags())
    serving.check_order(backend, engine, draft, settings)
    if defaults.has_own_code(draft):
        local = defaults.pair_of(draft)[1]
        cluster.check_own_code(draft, backend, engine, local, {**settings, **resolved})
    if backend is None and engine is None and "engine" in defaults.machine_of_workload(workload):
        # The engine is stored, because a rerun would otherwise use the engine of the workload.
        return DEFAULT_ENGINE
    return engine


def _tables(
    draft: Draft, file: Mapping[str, Any], workload: WorkloadSpec, resolved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tables ``settings``, ``goodput`` and ``weights``, updated by the user's flags."""
    flags = draft.of_flags()
    settings, weights = defaults.moved_weights(
        resolved, defaults.table_of(file, "weights"), draft.settings.of_flags()
    )
    given = weights | defaults.table_of(flags, "weights")
    return {
        "settings": settings,
        "goodput": defaults.table_of(file, "goodput") | defaults.table_of(flags, "goodput") or None,
        "weights": defaults.resolve_weights(workload, draft["clients"], given),
    }


def check_size(spec: ExperimentSpec) -> None:
    """Raise UsageError for clients that the workload cannot have, or for too many programs."""
    programs = sum(map(expected_programs, spec.client_plans()))
    if programs <= MAX_PROGRAMS:
        return
    rate = "dp" if spec.request_rate is None else "request_rate"
    keys = ("duration_s", rate) if spec.num_programs is None else ("num_programs",)
    number = f"{programs:,.0f}" if programs < 1e18 else f"{programs:.3g}"
    causes = ", ".join(f"{key} = {getattr(spec, key)}" for key in (*keys, "clients"))
    raise UsageError(
        f"{causes}: this gives about {number} programs in total, and at most "
        f"{MAX_PROGRAMS:,} are allowed"
    )


def check_sessions(spec: ExperimentSpec) -> None:
    """Raise UsageError if the gateway decides by session but the workload has no sessions."""
    if not needs_sessions(spec.gateway):
        return
    if not any(program_class(plan.kind).has_turns(plan.params) for plan in spec.client_plans()):
        raise UsageError(
            f"gateway = {spec.gateway!r}: the gateway decides by session, but every program of "
            f"the workload {spec.workload.name} is one request; choose a workload with sessions, "
            "such as 'sessions', 'agent' or 'tool-use', or a trace that names sessions"
        )


def experiment(
    flags: Mapping[str, Any], settings: Mapping[str, Any], file: Path | None = None
) -> ExperimentSpec:
    """Build an experiment from a file and from flags, which override the file.

    A flag with the value None counts as not given. ``settings``, whose keys are ``NAME.PARAM``,
    override flags that set engine parameters. Raises UsageError for a wrong value, and DataError
    for an invalid file.
    """
    check_names(flags, RUN)
    if not CLUSTER_KEYS.isdisjoint(flags):
        cluster.check_sides(flags)
    given = place_flags({name: one for name, one in flags.items() if one is not False}, RUN)
    if given.trace:
        given = with_trace(given)
    read = read_experiment(file) if file else None
    if defaults.has_own_code({**(read or {}), **given.keys}):
        given = with_flags_of_code(with_own_policy(given), read or {}, settings)
    keys = given.keys | ({"backend": given.backend} if given.backend else {})
    spec = resolve(keys, given.settings | dict(settings), read, path=file)
    if settings:
        cluster.check_used(settings, [spec])
    return spec


def with_own_policy(given: PlacedFlags) -> PlacedFlags:
    """Turn the flag ``schedule_policy`` into the local scheduler if ``engine_code`` is set."""
    backend = dict(given.backend)
    if "kind" in backend or (policy := backend.pop("schedule_policy", None)) is None:
        return given
    if given.keys.get("local", policy) != policy:
        raise UsageError(
            f"local = {given.keys['local']!r}: cannot be combined with schedule_policy = "
            f"{policy!r}; give only one of them"
        )
    return given._replace(keys={**given.keys, "local": policy}, backend=backend)


def with_flags_of_code(
    given: PlacedFlags, file: Mapping[str, Any], settings: Mapping[str, Any]
) -> PlacedFlags:
    """Convert the server flags in ``server_args`` to settings for ``engine_code``.

    Args:
        given: The flags that the user gave.
        file: The experiment file, which may name the engine.
        settings: Settings that the user gave, which the server flags must not contradict.
    """
    backend = dict(given.backend)
    if "kind" in backend or (words := backend.pop(ARGS, None)) is None:
        return given
    engine = str({**file, **given.keys}.get("engine") or DEFAULT_ENGINE)
    if engine not in ENGINES:
        return given
    found = settings_of_flags(words, engine)
    for key, value in found.items():
        if (other := {**given.keys, **given.settings, **settings}.get(key, value)) != value:
            raise UsageError(
                f"{key} = {other!r}: cannot be combined with {ARGS}, which set {value!r}; give "
                "only one of them"
            )
    keys = {key: found.pop(key) for key in list(found) if "." not in key}
    return given._replace(
        keys={**given.keys, **keys}, settings={**given.settings, **found}, backend=backend
    )


# maximum number of floods that are sought in a trace; the warm-up ends before the earliest flood
MOST_SOUGHT = 20


@lru_cache(maxsize=4)
def _first_flood_s(params: TraceParams) -> float:
    """Return the start of the first flood in a replayed trace in seconds; infinity means none.

    A trace that only states rates is not searched, because it records no flood and may have
    millions of requests.
    """
    from fairbench.metrics.floods import floods
    from fairbench.metrics.traffic import weighted_tokens

    trace = workloads.read_trace(params).trace
    if trace.drawn:
        return inf
    table = trace.table(0, inf)
    tokens = weighted_tokens(table.input_tokens, table.output_tokens)
    traffic = metrics.Traffic(table.clients, table.client, table.arrival_s, tokens, table.end_s)
    starts_s = [one.start_s for one in floods(traffic, MOST_SOUGHT)]
    return min(starts_s, default=inf) / params.time_scale


# The flags ``SAID`` cannot be combined with a trace, because the trace sets their values.
SAID = {
    **{"workload": "", "request_rate": ": give --time-scale", "dataset_path": ""},
    **{"dataset_map": "", "tokenizer": ""},
}


def with_trace(given: PlacedFlags) -> PlacedFlags:
    """Replace the flags that describe a trace by a workload that replays the trace.

    For a trace, ``clients`` is the number of made-up clients, and ``time_scale`` changes the speed
    of the trace. Raises UsageError for contradicting flags, and DataError for a file that is not a
    trace.
    """
    from fairbench.workloads.trace_workload import SCENARIO, params_of, trace_workload, with_heavy

    trace, keys, backend = given.trace, given.keys, given.backend
    if "file" not in trace:
        for name, one in RUN.items():
            if one.key.removeprefix("trace.") in trace:
                raise UsageError(f"{name} needs --trace")
        return given
    for name in (name for name in SAID if name in keys):
        raise UsageError(
            f"{name} = {keys[name]}: cannot be combined with --trace, which sets it{SAID[name]}"
        )
    if keys.get("clients", 1) < 1:
        raise UsageError(f"clients = {keys['clients']}: must be above 0")
    params = trace_params(given)
    workload = with_heavy(trace_workload(params), trace.get("misbehaving", ()))
    # The parameters of a trace workload also hold the digest of the trace file.
    known = params_of(workload) or params
    warmup_s = min(workload.warmup_s, _first_flood_s(known))
    workload = workload.model_copy(update={"warmup_s": warmup_s})
    rest = {key: value for key, value in keys.items() if key != "clients"}
    return given._replace(
        keys={"scenario": SCENARIO} | rest | {"workload": workload},
        backend={key: value for key, value in backend.items() if key != "time_scale"},
        trace={},
    )


def trace_params(given: PlacedFlags) -> TraceParams:
    """Return the parameters with which a trace file is read.

    Raises UsageError if the column names contain an unknown field.
    """
    trace = given.trace
    columns = dict(trace.get("columns", {}))
    if "client" in trace:
        columns["client"] = trace["client"]
    workloads.trace_reader().mapped(columns)
    return workloads.TraceParams(
        file=str(trace["file"]),
        format=trace.get("format", "auto"),
        time_scale=given.backend.get("time_scale", 1.0),
        columns=workloads.joined_columns(columns),
        clients=given.keys.get("clients", 0),
        spread=trace.get("spread", False),
        line=trace.get("line", 0),
        block_size=trace.get("block_size", 0),
        time_unit=trace.get("time_unit", ""),
    )
