"""Requests of users: the flags of the commands made into what is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.disaggregation import SIDES, check_sides
from fairbench.config.resolve import read_experiment, resolve
from fairbench.config.sweep import (
    Sweep,
    make_sweep,
    overridden,
    quickened,
    read_sweep,
    sweep_names,
)
from fairbench.errors import UsageError, unknown_name
from fairbench.execute.traced import traced

# Flags by their names, with underscores, and what each sets: a key of an experiment file ...
KEYS = {
    **{
        name: name
        for name in (
            *("scheduler", "router", "local", "dp", "workload", "scenario", "gpu", "model"),
            *("num_programs", "request_rate", "burstiness", "clients", "weights", "seed"),
            *("gateway", "saturation", "engine", "dataset_path", "tokenizer", "tag", "goodput"),
            *("percentiles", "routers", "preset", "window", "eviction", "memory_records"),
            *SIDES,
        )
    },
    "duration": "duration_s",
}
# ... a setting of the engine ...
ENGINE = {
    **{
        name: f"engine.{name}"
        for name in (
            *("mem_fraction_static", "max_total_tokens", "max_running_requests"),
            *("chunked_prefill_size", "max_prefill_tokens", "schedule_conservativeness"),
        )
    },
    "timing_error": "timing.error_pct",
}
# ... or a key of its table [backend].
BACKEND = {
    "backend": "kind",
    **{
        name: name
        for name in (
            *("base_url", "api", "output_lengths", "max_concurrency", "tp", "share_gpus"),
            *("extra_body", "max_tokens_field", "rate_limited"),
            *("load_format", "schedule_policy", "server_args", "time_scale", "router_command"),
        )
    },
}
# With a trace: what to make of its file.
TRACE = (
    *("trace", "trace_format", "trace_map", "trace_line", "trace_block_size", "trace_spread"),
    *("clients_from", "misbehaving"),
)
FLAGS = (*KEYS, *ENGINE, *BACKEND, *TRACE)

# The same of a sweep: keys that have one value at all points, and axes of its grid.
SINGLE = {
    **{
        name: name
        for name in ("preset", "weights", "goodput", "percentiles", "gpu", "model", "backend")
    },
    "num_programs": "num_programs",
    "duration": "duration_s",
    "seed": "seed",
}
AXES = {
    **{"schedulers": "scheduler", "workloads": "workload", "scenarios": "scenario", "dp": "dp"},
    **{"gateways": "gateway", "saturations": "saturation", "routers": "routers"},
    "evictions": "eviction",
    **{name: name for name in ("request_rate", "clients", "router", "local", *SIDES)},
}


def experiment(
    flags: Mapping[str, Any], settings: Mapping[str, Any], file: Path | None = None
) -> ExperimentSpec:
    """Build an experiment from a file, overridden by named flags; None means not given.

    ``settings`` are by ``NAME.PARAM`` and override the engine's flags. Raises UsageError in one
    line that names what is wrong, DataError if the file is wrong.
    """
    check_names(flags, FLAGS)
    check_sides(flags)
    flags = traced(flags, TRACE)
    backend = _given(flags, BACKEND)
    if not backend.get("share_gpus", True):
        del backend["share_gpus"]
    given = _given(flags, KEYS) | ({"backend": backend} if backend else {})
    read = read_experiment(file) if file else None
    return resolve(given, _given(flags, ENGINE) | dict(settings), read, path=file)


def sweep_of(
    ref: str | None,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    num_runs: int | None = None,
    name: str | None = None,
    quick: bool = False,
) -> Sweep:
    """Build a sweep from a file or bundled name, from named flags, or from both.

    None means not given. A value of an axis or of ``settings`` may be a list of several values.
    Raises UsageError without any input, or for wrong input.
    """
    check_names(flags, (*AXES, *SINGLE))
    check_sides(flags)
    axes = {**_given(flags, AXES), **settings, **_given(flags, SINGLE)}
    if not ref and not axes:
        names = ", ".join(sweep_names())
        raise UsageError(f"nothing to sweep: name a FILE.toml, one of {names}, or --schedulers A,B")
    swept = read_sweep(ref) if ref else make_sweep({"name": "sweep", "grid": {}})
    fields = {"num_runs": num_runs, "name": name}
    fields = {key: value for key, value in fields.items() if value is not None}
    return overridden(quickened(swept) if quick else swept, axes, **fields)


def check_names(flags: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise UsageError for a flag that there is not."""
    for name in flags:
        if name not in known:
            raise unknown_name("flag", name, known)


def _given(flags: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags that are given, under the keys that they set."""
    return {key: flags[name] for name, key in keys.items() if flags.get(name) is not None}
