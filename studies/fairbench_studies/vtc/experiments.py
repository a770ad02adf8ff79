"""The runs behind the VTC paper's figures and claims, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.config.spec import ExperimentSpec
from fairbench.errors import DataError
from fairbench.workloads.traces.read import find_trace_file

ARENA = "vtc-arena"
RPM_LIMITS = (5, 10, 15, 20, 30)


@dataclass(frozen=True)
class Experiment:
    """A workload of the VTC paper under one local scheduler, on one replica."""

    workload: str
    local: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = "s1"
    duration_s: float | None = None

    def spec(self, seed: int = 0) -> ExperimentSpec:
        """Return the complete experiment with the given seed.

        Raises DataError if the experiment's trace is missing.
        """
        flags: dict[str, Any] = {
            "workload": self.workload,
            "scenario": self.scenario,
            "router": "round-robin",
            "local": self.local,
            "seed": seed,
        }
        if self.duration_s is not None:
            flags["duration_s"] = self.duration_s
        return resolve(flags, self.settings)


def _predicted(workload: str, duration_s: float | None = None) -> dict[str, Experiment]:
    kinds: dict[str, dict[str, Any]] = {
        "oracle": {"vtc-predict.predictor": "oracle"},
        "off by 50%": {"vtc-predict.predictor": "oracle", "vtc-predict.error": 0.5},
        "average": {"vtc-predict.predictor": "average"},
    }
    return {
        f"{workload} {kind}": Experiment(workload, "vtc-predict", settings, duration_s=duration_s)
        for kind, settings in kinds.items()
    }


def _under(workload: str, *schedulers: str) -> dict[str, Experiment]:
    return {f"{workload} {local}": Experiment(workload, local) for local in schedulers}


SHORT = "vtc-overload short"  # 360 s, as in measured runs with predicted output lengths
EXPERIMENTS: Mapping[str, Experiment] = {
    **_under("vtc-overload", "vtc", "fcfs", "mdrr"),
    f"{SHORT} vtc": Experiment("vtc-overload", "vtc", duration_s=360.0),
    **{
        name.replace("vtc-overload", SHORT): one
        for name, one in _predicted("vtc-overload", 360.0).items()
    },
    **_under("vtc-proportional", "vtc"),
    **_under("vtc-on-off-less", "vtc"),
    **_under("vtc-on-off-overload", "vtc"),
    **_under("vtc-poisson-short-long", "vtc", "fcfs"),
    **_under("vtc-poisson-short-long-2", "vtc", "fcfs"),
    **_under("vtc-increasing", "vtc", "fcfs"),
    **_under("vtc-shift", "vtc", "lcf"),
    **_under(ARENA, "vtc", "fcfs", "lcf"),
    **_predicted(ARENA),
    **{
        f"{ARENA} rpm {limit}": Experiment(ARENA, "rpm", {"rpm.limit": limit})
        for limit in RPM_LIMITS
    },
    **_under("vtc-weighted", "vtc"),
    **_under("vtc-eight", "vtc"),
    "vtc-memory-pool 35,000": Experiment("vtc-memory-pool", "vtc"),
    "vtc-memory-pool 65,000": Experiment("vtc-memory-pool", "vtc", scenario="s2"),
    "vtc-length 256": Experiment("vtc-length", "vtc"),
    "vtc-length 512": Experiment("vtc-length", "vtc", scenario="s2"),
    "vtc-length 768": Experiment("vtc-length", "vtc", scenario="s3"),
}


def possible() -> dict[str, Experiment]:
    """Return all experiments, or those without the Arena trace if the trace is missing."""
    try:
        find_trace_file("vtc_arena_trace.jsonl.gz")
    except DataError:
        return {name: one for name, one in EXPERIMENTS.items() if one.workload != ARENA}
    return dict(EXPERIMENTS)
