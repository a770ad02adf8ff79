"""Comparison of a run on real servers with its simulation, metric by metric."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from fairbench.config.backend import AS_SERVED, NO_PROFILE
from fairbench.config.parse_flags import SIM
from fairbench.config.resolve import read_experiment, resolve
from fairbench.config.spec import ExperimentSpec
from fairbench.errors import UsageError
from fairbench.hardware.engine_params import NEWEST, RULES
from fairbench.metrics.catalogue import columns_of
from fairbench.metrics.metric import Display
from fairbench.metrics.shown_percentiles import shown_client_tail, shown_tail
from fairbench.report.numbers import UNDEFINED, number
from fairbench.results.store import EXPERIMENT, StoredRun, Summary


@dataclass(frozen=True, slots=True)
class Pair:
    """The values of a metric in the simulation and in the real run, or NaN if missing."""

    simulated: float
    measured: float

    @property
    def error_pct(self) -> float | None:
        """The simulated minus the measured value, in percent of the measured value, or None."""
        if self.simulated == self.measured:
            return 0.0
        if not self.measured or not isfinite(self.simulated - self.measured):
            return None
        return 100 * (self.simulated / self.measured - 1)

    def within(self, percent: float) -> bool:
        return self.error_pct is not None and abs(self.error_pct) <= percent

    def as_dict(self) -> dict[str, float | None]:
        """Return the simulated value, the measured value and the error; undefined ones are None."""
        simulated, measured = (x if isfinite(x) else None for x in (self.simulated, self.measured))
        return {"simulated": simulated, "measured": measured, "error_pct": self.error_pct}


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """The comparison of a run on real servers with its simulation.

    ``kind`` is ``measured`` or ``emulated``, and ``served`` is the name of the server. ``pairs``
    maps each metric to its two values; a client's metric has the key ``CLIENT.metric``.
    """

    kind: str
    served: str
    timing_profile: str
    pairs: dict[str, Pair]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types, with the real run's values under ``measured``."""
        return {
            "kind": self.kind,
            "served": self.served,
            "timing_profile": self.timing_profile,
            "metrics": {key: pair.as_dict() for key, pair in self.pairs.items()},
        }


def simulated_spec(run: StoredRun, gpu: str | None, model: str | None) -> ExperimentSpec:
    """Return the experiment that simulates a run on real servers.

    The experiment has the run's seed, load, schedulers and KV pool. The simulated engine behaves
    like the SGLang release that served the run. Raises UsageError if fairbench did not start the
    servers of the run, or if there is no timing profile.

    Args:
        run: The stored run on real servers.
        gpu: The GPU of the timing profile, or None for the GPU in the stored run.
        model: The model, or None for the model in the stored run.
    """
    path = run.path / EXPERIMENT
    stored = read_experiment(path)
    if run.summary["simulated"]:
        raise UsageError(
            f"{run.path}: this run is a simulation; give the directory of a run on real servers"
        )
    if stored["local"] == AS_SERVED:
        raise UsageError(
            f"{run.path}: the run does not name its scheduler, so it cannot be simulated; "
            "give a run whose servers fairbench started"
        )
    if gpu is None and stored["gpu"] == NO_PROFILE:
        raise UsageError(
            "--gpu: missing; give the timing profile of the GPU on which the run was measured"
        )
    flags = {"backend": SIM, "gpu": gpu or stored["gpu"]}
    flags |= {"model": model} if model else {}
    if model is None and stored["gpu"] == NO_PROFILE:
        stored = {key: value for key, value in stored.items() if key != "model"}
    served = {"engine.max_total_tokens": run.summary["pool_tokens"]}
    release = re.match(r"sglang (\d+\.\d+\.\d+)", run.summary["served"])
    older = [name for name, rules in RULES.items() if rules != NEWEST]
    if release and release[1] in older:
        served["engine.release"] = release[1]
    return resolve(flags, served, stored, path=path)


def compare_live(run: StoredRun, simulated: Summary) -> LiveComparison:
    """Compare a run on real servers with the summary of its simulation."""
    live = run.summary
    return LiveComparison(
        kind="emulated" if live["emulated"] else "measured",
        served=live["served"],
        timing_profile=simulated["timing_profile"],
        pairs=dict(_pairs(live, simulated)),
    )


def _pairs(live: Summary, simulated: Summary) -> Iterator[tuple[str, Pair]]:
    both = (live, simulated)
    for column in columns_of(Display.LIVE, shown_tail(both)):
        yield column.key, _pair(live, simulated, column.key)
    tail = shown_client_tail(both)
    for theirs, ours in zip(live["clients"], simulated["clients"], strict=True):
        for column in columns_of(Display.LIVE_CLIENTS, tail):
            yield f"{theirs['client']}.{column.key}", _pair(theirs, ours, column.key)


def _pair(live: Summary, simulated: Summary, key: str) -> Pair:
    values = (side.get(key) for side in (simulated, live))
    return Pair(*(nan if value is None else float(value) for value in values))


def live_lines(comparison: LiveComparison) -> Iterator[str]:
    """Yield the lines of a table that compares a real run with its simulation."""
    kind = comparison.kind
    yield f"simulated on {comparison.timing_profile}; {kind} on {comparison.served}"
    yield ""
    yield f"{'':<32}{kind:>14}{'simulated':>14}{'error':>10}"
    for key, pair in comparison.pairs.items():
        error = UNDEFINED if pair.error_pct is None else f"{pair.error_pct:+.1f}%"
        live, ours = (number(None if x != x else x) for x in (pair.measured, pair.simulated))
        yield f"{key:<32}{live:>14}{ours:>14}{error:>10}"
