"""The comparison of a measured run of programs with its replay: values, errors and targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbench.report.numbers import index
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.programs.measured import ProgramRun
from fairbench_studies.validation.programs.replay import Replay
from fairbench_studies.validation.report import both
from fairbench_studies.validation.serving.profiles import host_cost_text

SERVICE_TARGET_PCT, MAKESPAN_TARGET_PCT, JAIN_TARGET = 6.0, 12.0, 0.05
# The DLPM authors' script leaves users without service out of Jain's index. Jain's index is assumed
# to cover only one user if the index is at least ``ALONE_INDEX``, although users' median latencies
# differ by more than a factor of ``UNEQUAL``.
ALONE_INDEX, UNEQUAL = 0.9995, 2.0


@dataclass(frozen=True, slots=True)
class ProgramComparison:
    """The metrics of a measured run of programs and of its simulation.

    Service is in tokens/s (input + 2 x output). No value of the simulation was fitted to the
    measured run. ``notes`` names the values of the simulation that were fitted to other runs.
    """

    name: str
    policy: str
    profile: str
    service: Pair
    service_all_active: Pair
    jain: Pair
    makespan_s: Pair
    p50_s: dict[str, Pair]

    @property
    def notes(self) -> list[str]:
        """A note on the CPU time that the replay adds for the run's policy, if it adds any."""
        return list(filter(None, [host_cost_text(self.policy)]))

    @property
    def misses(self) -> list[str]:
        """The targets that the replay misses, with the simulated and the measured value."""
        return list(self._misses())

    def _misses(self) -> Iterator[str]:
        for name, pair, target in (
            ("service", self.service, SERVICE_TARGET_PCT),
            ("service while all are active", self.service_all_active, SERVICE_TARGET_PCT),
            ("makespan", self.makespan_s, MAKESPAN_TARGET_PCT),
        ):
            if not pair.within(target):
                yield f"{name}: {both(pair)}, {_error(pair)} (target {target:g}%)"
        if not abs(self.jain.simulated - self.jain.measured) <= JAIN_TARGET:
            yield f"Jain: {self.jain.simulated:.3f} against {self.jain.measured:.3f}"

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        return {
            "name": self.name,
            "policy": self.policy,
            "timing_profile": self.profile,
            "fitted": False,
            "notes": self.notes,
            "service_rate_tok_s": self.service.as_dict(),
            "service_rate_all_active_tok_s": self.service_all_active.as_dict(),
            "jain_index": self.jain.as_dict(),
            "makespan_s": self.makespan_s.as_dict(),
            "program_p50_s": {user: pair.as_dict() for user, pair in self.p50_s.items()},
            "misses": self.misses,
        }


def compare_programs(run: ProgramRun, simulated: Replay, profile: str) -> ProgramComparison:
    """Compare a measured run with its replay, which used the timing profile with id ``profile``."""
    active_s, makespan_s = simulated.all_active_s, simulated.makespan_s
    active = float(simulated.service_by(active_s).sum()) / active_s
    return ProgramComparison(
        name=run.name,
        policy=run.policy,
        profile=profile,
        service=Pair(float(simulated.service.sum()) / makespan_s, run.service_tok_s),
        service_all_active=Pair(active, run.service_all_active_tok_s),
        jain=Pair(simulated.jain, jain_of_all(run)),
        makespan_s=Pair(makespan_s, run.makespan_s),
        p50_s={
            user: Pair(simulated.p50_s(number), float(np.median(times)))
            for number, (user, times) in enumerate(run.latencies_s.items())
        },
    )


def jain_of_all(run: ProgramRun) -> float:
    """Return Jain's index over all n users, or 1 / n if the published index covers one user."""
    medians = [float(np.median(times)) for times in run.latencies_s.values()]
    if run.jain >= ALONE_INDEX and max(medians) > UNEQUAL * min(medians):
        return 1 / len(medians)
    return run.jain


def programs_text(runs: Sequence[ProgramComparison]) -> str:
    """Return the comparisons as a text table, followed by the missed targets."""
    lines = ["runs of the DLPM authors' judge benchmark: simulated/measured, error"]
    lines += [f"timing profile {profile}" for profile in sorted({run.profile for run in runs})]
    lines += sorted({note for run in runs for note in run.notes})
    lines += ["! misses a target", ""]
    for run in runs:
        lines.append(f"{run.name} ({run.policy})")
        for name, pair in (
            ("service, tok/s", run.service),
            ("service while all are active, tok/s", run.service_all_active),
            ("makespan, s", run.makespan_s),
            *((f"program P50 of {user}, s", pair) for user, pair in run.p50_s.items()),
        ):
            lines.append(f"  {name:<38}{both(pair):>16}  {_error(pair):>7}")
        lines.append(f"  {'Jain, every user counted':<38}{both(run.jain, index):>16}")
    missed = [(run, miss) for run in runs for miss in run.misses]
    lines.append(f"Targets missed: {len(missed) or 'none'}")
    lines += [f"  ! {run.name}: {miss}" for run, miss in missed]
    return "\n".join(lines) + "\n"


def _error(pair: Pair) -> str:
    return "undefined" if pair.error_pct is None else f"{pair.error_pct:+.0f}%"
