"""Resolution of user input to a full spec: defaults, then the file, then flags and settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairbench.config.backend_checks import (
    check_behaviours,
    check_machine,
    check_no_engine,
    resolve_backend,
)
from fairbench.config.cluster import EVICTION, check_disaggregated, check_sides, settle_cluster
from fairbench.config.cluster import KEYS as CLUSTER_KEYS
from fairbench.config.defaults import (
    DEFAULTS,
    chosen_part,
    engine_of,
    given_values,
    machine_of_workload,
    moved_weights,
    read_workload,
    resolve_weights,
    table_of,
    text_of,
    used_parts,
    usual_scenario,
    workload_defaults,
)
from fairbench.config.flags.flag import Placed, check_names, placed
from fairbench.config.flags.run import RUN
from fairbench.config.gateway import GATEWAY_KEYS, settle_gateway
from fairbench.config.preset import Preset, at_rate_of, check_preset, preset_for
from fairbench.config.serving import Chosen, check_scheduling, defaults_of, fitting, served
from fairbench.config.settings import check_engine_settings, flat_settings, resolve_settings
from fairbench.config.spec import GIVEN, Draft, ExperimentSpec, Origin, without_given
from fairbench.errors import DataError, UsageError, about, explain, keys_of, unknown_name
from fairbench.files.json_text import INTEGERS
from fairbench.files.toml_text import read_toml
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.schedulers.gateway.registry import ADMISSION
from fairbench.schedulers.params import own_settings
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import expected_programs

if TYPE_CHECKING:
    from fairbench.workloads.traces.read import TraceParams

# limit for a run; beyond it the records no longer fit in a computer's memory
MAX_PROGRAMS = 2_000_000

# Keys on which the defaults of other keys depend.
RULING = frozenset(
    {"workload", "scenario", "scheduler", "router", "local", "gpu", "model"}
    | {
        "duration_s",
        "num_programs",
        "clients",
        "engine",
        "routers",
        "preset",
        EVICTION,
        *GATEWAY_KEYS,
    }
)

# Keys that decide what clients send.
SENT = ("workload", "scenario", "clients", "num_programs", "request_rate", "duration_s", "dp")


def read_experiment(path: Path) -> dict[str, Any]:
    """Read an experiment file's keys. Raises DataError naming the file and the key or line."""
    if path.name.removesuffix(".gz").endswith((".csv", ".jsonl")):
        raise DataError(f"{path}: must be an experiment in TOML; for a trace, write --trace {path}")
    data = read_toml(path, str(path))
    for key in data:
        if key not in ExperimentSpec.model_fields:
            wrong = unknown_name("key", key, ExperimentSpec.model_fields)
            raise DataError(f"{path}: {wrong}")
    if not isinstance(data.get("settings", {}), dict):
        raise DataError(f"{path}: settings: must be a table, such as [settings.dlpm]")
    return data


def read_spec(path: Path) -> ExperimentSpec:
    """Return the full spec of an experiment file. Raises DataError naming the file."""
    return resolve({}, {}, read_experiment(path), path=path)


def with_new_defaults(file: Mapping[str, Any], path: Path) -> ExperimentSpec:
    """Return the spec of a stored experiment in which only chosen values are kept.

    All other values are today's defaults. Raises DataError naming the file.
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
    """Return the full spec. ``flags`` override keys of ``file``, ``assignments`` its settings.

    All three hold only explicit values; of a stored ``file``, which spells out defaults, too,
    ``new_defaults`` keeps only the values that somebody chose. ``path`` is the location of
    ``file``. Raises UsageError with one line that names the field, its value and what is allowed.
    If the file itself is wrong, raises DataError, which also names the file.
    """
    draft = Draft(flags, assignments or {})
    try:
        return _resolve(draft, file or {}, new_defaults=new_defaults)
    except UsageError as error:
        if error.keys and error.keys <= draft.of_preset:
            raise _of_preset(str(draft["preset"]), error) from None
        if path is not None and error.is_of_file(draft.flagged):
            raise DataError(f"{path}: {error}") from None
        raise


def _of_preset(ref: str, error: UsageError) -> DataError:
    """Return the error about values of a preset; a user cannot leave these out, but override."""
    text = str(error)
    for key in error.keys & DEFAULTS.keys():
        other = f"give {key} = {DEFAULTS[key]}, or leave the preset out"
        text = text.replace(f"leave {key} out", other)
    return DataError(f"preset {ref}: {text}")


def _resolve(draft: Draft, file: Mapping[str, Any], *, new_defaults: bool) -> ExperimentSpec:
    """Return the spec of a draft that flags have begun, over a file."""
    backend = None
    if "backend" in draft or "backend" in file:
        backend = resolve_backend(draft.get("backend"), file.get("backend"))
    given = None
    if file:
        file = fitting(file, backend)
    with suppress(UsageError):  # what is wrong is reported below
        given = given_values(draft.of_flags(), draft.settings.of_flags(), file)
    if file and (new_defaults or not RULING.isdisjoint(draft)):
        file = chosen_part(file, other_workload="workload" in draft)
    file = without_given(file)
    draft.fill(file, Origin.FILE)
    draft.settings.fill(flat_settings(table_of(draft, "settings")), Origin.FILE)
    preset = _fill_usual(draft, backend)
    draft |= served(backend, draft)
    settings = dict(draft.settings)
    admission = (ADMISSION,) if own_settings(ADMISSION, settings) else ()
    if admission or not draft.keys().isdisjoint(GATEWAY_KEYS):
        settle_gateway(draft, backend)
    if not CLUSTER_KEYS.isdisjoint(draft):
        settle_cluster(draft, backend, engine_of(draft))
    workload, resolved = resolve_settings(
        read_workload(draft["workload"]),
        text_of(draft, "scenario"),
        used_parts(draft) + admission,
        settings,
    )
    if preset is not None:
        with about("preset", "engine", "workload"):
            check_preset(preset, draft, workload.name)
        workload = at_rate_of(preset, workload)
    engine = _checked_engine(draft, backend, workload, resolved)
    draft |= {"backend": backend, "workload": workload, "engine": engine}
    draft.fill(workload_defaults(draft, workload), Origin.WORKLOAD)
    draft |= _tables(draft, file, workload, resolved) | {GIVEN: given}
    try:
        spec = ExperimentSpec.model_validate(dict(draft))
    except ValidationError as error:
        raise UsageError(explain(error)).of(*keys_of(error)) from None
    for key, value in {**draft, **draft.settings}.items():
        if isinstance(value, int) and value not in INTEGERS:
            raise UsageError(f"{key} = {value}: must fit 64 bits").of(key)
    with about(*SENT):
        check_size(spec)
        if backend is not None:
            check_behaviours(spec, backend)
    return spec


def _fill_usual(draft: Draft, backend: Chosen) -> Preset | None:
    """Add what the preset, the workload's machine and the defaults imply. Return the preset."""
    workload, preset = read_workload(draft.get("workload", DEFAULTS["workload"])), None
    machine = {} if backend is not None else machine_of_workload(workload)
    if (ref := draft.get("preset")) is not None:
        with about("preset", "backend.kind"):
            preset = preset_for(str(ref), backend)
        draft.fill(preset.experiment, Origin.PRESET)
        draft.settings.fill(preset.settings, Origin.PRESET)
    draft.fill(machine | {"scenario": usual_scenario(workload)}, Origin.WORKLOAD)
    draft.fill(defaults_of(backend), Origin.DEFAULT)
    return preset


def _checked_engine(
    draft: Draft, backend: Chosen, workload: WorkloadSpec, resolved: Mapping[str, Any]
) -> str | None:
    """Return the engine, None for the default. Raises UsageError for settings that it lacks."""
    engine, settings = engine_of(draft), dict(draft.settings)
    if backend is not None:
        own = workload.scheduler_settings(text_of(draft, "scenario"))
        check_machine(backend, {**settings, **resolved}, own)
        check_no_engine(backend, engine)
    check_engine_settings(engine, settings)
    if "prefill" in draft:
        check_disaggregated(engine, {**settings, **resolved})
    check_scheduling(backend, draft.settings.of_flags())
    if backend is None and engine is None and "engine" in machine_of_workload(workload):
        # named, because stored values would otherwise be read as the workload's
        return DEFAULT_ENGINE
    return engine


def _tables(
    draft: Draft, file: Mapping[str, Any], workload: WorkloadSpec, resolved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings, goodput and weights, of which flags override single entries."""
    flags = draft.of_flags()
    assigned = draft.settings.of_flags()
    settings, weights = moved_weights(resolved, table_of(file, "weights"), assigned)
    given = weights | table_of(flags, "weights")
    return {
        "settings": settings,
        "goodput": table_of(file, "goodput") | table_of(flags, "goodput") or None,
        "weights": resolve_weights(workload, draft["clients"], given),
    }


def check_size(spec: ExperimentSpec) -> None:
    """Raise UsageError for impossible clients, or for too many programs."""
    plans = spec.client_plans()
    programs = sum(map(expected_programs, plans))
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


def experiment(
    flags: Mapping[str, Any], settings: Mapping[str, Any], file: Path | None = None
) -> ExperimentSpec:
    """Build an experiment from a file, overridden by named flags; None means not given.

    ``settings`` are by ``NAME.PARAM`` and override the engine's flags. Raises UsageError in one
    line that names what is wrong, DataError if the file is wrong.
    """
    check_names(flags, RUN)
    if not CLUSTER_KEYS.isdisjoint(flags):
        check_sides(flags)
    given = placed({name: one for name, one in flags.items() if one is not False}, RUN)
    if given.trace:
        given = traced(given)
    keys = given.keys | ({"backend": given.backend} if given.backend else {})
    read = read_experiment(file) if file else None
    return resolve(keys, given.settings | dict(settings), read, path=file)


MOST_SOUGHT = 20  # floods of a trace, of which the earliest ends the warm-up


@lru_cache(maxsize=4)
def _first_flood_s(params: TraceParams) -> float:
    """Return when the earliest flood of a trace begins in its replay; infinite without a flood.

    A trace that is drawn from rates has no recorded flood, and may have millions of requests.
    """
    from fairbench.metrics.floods import floods
    from fairbench.metrics.traffic import Traffic
    from fairbench.workloads.traces.read import read_trace

    trace = read_trace(params).trace
    if trace.drawn:
        return inf
    table = trace.table(0, inf)
    tokens = (table.input_tokens + 2 * table.output_tokens).astype(float)
    traffic = Traffic(table.clients, table.client, table.arrival_s, tokens, table.end_s)
    starts_s = [one.start_s for one in floods(traffic, MOST_SOUGHT)]
    return min(starts_s, default=inf) / params.time_scale


# Facts that a trace states itself.
SAID = {
    **{"workload": "", "request_rate": ": give --time-scale", "dataset_path": ""},
    **{"dataset_map": "", "tokenizer": ""},
}


def traced(given: Placed) -> Placed:
    """Return the given flags, in which the trace's workload replaces the flags of a trace.

    ``clients`` are then synthetic, and ``time_scale`` applies to the trace. Raises UsageError for
    conflicting flags, DataError for a file that is not a trace.
    """
    from fairbench.workloads.trace_workload import (
        SCENARIO,
        params_of,
        trace_workload,
        with_heavy,
    )

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
    known = params_of(workload) or params  # with the file's digest
    warmup_s = min(workload.warmup_s, _first_flood_s(known))
    workload = workload.model_copy(update={"warmup_s": warmup_s})
    rest = {key: value for key, value in keys.items() if key != "clients"}
    return given._replace(
        keys={"scenario": SCENARIO} | rest | {"workload": workload},
        backend={key: value for key, value in backend.items() if key != "time_scale"},
        trace={},
    )


def trace_params(given: Placed) -> TraceParams:
    """Return how flags say to read their trace. Raises UsageError for unknown fields."""
    from fairbench.records.names import mapped
    from fairbench.workloads.traces.read import TraceParams, joined_columns

    trace = given.trace
    columns = dict(trace.get("columns", {}))
    if "client" in trace:
        columns["client"] = trace["client"]
    mapped(columns)
    return TraceParams(
        file=str(trace["file"]),
        format=trace.get("format", "auto"),
        time_scale=given.backend.get("time_scale", 1.0),
        columns=joined_columns(columns),
        clients=given.keys.get("clients", 0),
        spread=trace.get("spread", False),
        line=trace.get("line", 0),
        block_size=trace.get("block_size", 0),
        time_unit=trace.get("time_unit", ""),
    )
