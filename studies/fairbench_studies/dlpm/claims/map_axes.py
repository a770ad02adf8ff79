"""The settings that are varied, one at a time, to see where claims of the DLPM paper hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.sweep import make_sweep, points
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import EngineParams, engine_limits

Draft = Mapping[str, Any]
"""An experiment as a mapping, without default values; a setting has the key ``NAME.PARAM``."""

POOL, RUNNING, LOAD = "KV pool", "running limit", "load"
QUANTUM, WORKER_QUANTUM, PROFILE = "Q^u", "Q^w", "timing profile"
AXES = (POOL, RUNNING, LOAD, QUANTUM, WORKER_QUANTUM, PROFILE)

POOL_PARTS = {"1/2": 0.5, "1/4": 0.25}
RUNNING_LIMITS = (2048, 128, 32)
LOADS = {"x2": 2.0}
QUANTA = {"x0.1": 0.1, "x10": 10.0, "x100": 100.0}  # multiples of the default quantum
PROFILES = (
    "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10",
    "a100-80gb/llama-3.1-8b/tp1/measured-sglang",
)


class Step(NamedTuple):
    """A value of a varied setting (``axis``), with its label and its changes to the experiment."""

    axis: str
    label: str
    changes: Draft

    @property
    def is_default(self) -> bool:
        """Whether the value is the default value of the setting."""
        return not self.changes


def spec_of(draft: Draft) -> ExperimentSpec:
    """Return the experiment that ``draft`` describes, with the first seed.

    Raises UsageError if keys of ``draft`` contradict each other.
    """
    return points(make_sweep({"name": "cell", "grid": [dict(draft)]}))[0]


def steps_round(cell: Draft, schedulers: Sequence[str]) -> list[Step]:
    """Return the values of each setting that is varied around a configuration.

    The values of a setting include the configuration's own value. A setting is left out if no
    scheduler has it, or if the configuration's own value would be its only value.
    """
    specs = [spec_of({**cell, "scheduler": scheduler}) for scheduler in schedulers]
    spec = specs[0]
    settings = {key: value for one in specs for key, value in one.settings.items()}
    rate = spec.request_rate or spec.workload.scenario(spec.scenario).rate_on(spec.gpu) * spec.dp
    quanta = {QUANTUM: "dlpm.quantum", WORKER_QUANTUM: "d2lpm.worker_quantum"}
    return [
        *_multiples(POOL, "engine.max_total_tokens", _pool_tokens(spec), POOL_PARTS),
        *_values(RUNNING, "engine.max_running_requests", _params(spec).max_running_requests),
        *_multiples(LOAD, "request_rate", rate, LOADS),
        *(
            step
            for axis, key in quanta.items()
            if key in settings
            for step in _multiples(axis, key, settings[key], QUANTA)
        ),
        *_profiles(spec),
    ]


def _multiples(axis: str, key: str, default: float, by: Mapping[str, float]) -> list[Step]:
    whole = isinstance(default, int)
    found = [
        (factor, Step(axis, label, {key: round(default * factor) if whole else default * factor}))
        for label, factor in by.items()
    ]
    falling = all(factor < 1 for factor in by.values())
    label = "1" if falling else "x1"
    ordered = sorted([*found, (1.0, Step(axis, label, {}))], key=lambda one: one[0])
    return [step for _, step in (reversed(ordered) if falling else ordered)]


def _values(axis: str, key: str, default: int) -> list[Step]:
    return [
        Step(axis, f"{value:,}", {} if value == default else {key: value})
        for value in sorted({*RUNNING_LIMITS, default}, reverse=True)
    ]


def _profiles(spec: ExperimentSpec) -> list[Step]:
    machine = spec.gpu.rpartition("/")[0]
    names = [spec.gpu, *(one for one in PROFILES if one.rpartition("/")[0] == machine)]
    steps = [
        Step(PROFILE, name.rpartition("/")[2], {} if name == spec.gpu else {"gpu": name})
        for name in dict.fromkeys(names)
    ]
    return steps if len(steps) > 1 else []


def _pool_tokens(spec: ExperimentSpec) -> int:
    return engine_limits(_params(spec), load_profile(spec.gpu)).pool_tokens


def _params(spec: ExperimentSpec) -> EngineParams:
    prefix = "engine."
    return EngineParams(
        **{k.removeprefix(prefix): v for k, v in spec.settings.items() if k.startswith(prefix)}
    )
