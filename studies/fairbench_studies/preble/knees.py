"""Each router's knee on agent programs: the largest load at which latency meets a target.

    python studies knees

The script makes the missing runs of the sweep results/tables/knees.toml, and writes
results/tables/knees.csv.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fairbench.results.comparison import SchedulerResults
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.kit.rows import TABLES
from fairbench_studies.kit.seeds import completed_cells
from fairbench_studies.kit.table_store import write
from fairbench_studies.preble.experiments import MEMSERVE, PREBLE, ROUND_ROBIN
from fairbench_studies.preble.store import latencies_of

TARGET_S = 20.0  # latency target: "the 20-second latency requirement" ([Preble] §F, Fig. 15)
SYSTEMS = {"lpm": ROUND_ROBIN, PREBLE: PREBLE, "memserve+lpm": MEMSERVE}
"""The compared schedulers, each with the name of its system in the table."""


class Point(NamedTuple):
    """A system's latencies at one load.

    Latencies are in seconds, one per seed. The load is in programs/s per client and GPU.
    """

    system: str
    load: float
    means_s: Sequence[float]
    p99s_s: Sequence[float]

    @property
    def within(self) -> int:
        """The number of seeds whose P99 latency meets the target."""
        return sum(p99_s <= TARGET_S for p99_s in self.p99s_s)


def knees(points: Sequence[Point]) -> dict[str, float]:
    """Return each system's knee: the largest load up to which all seeds meet the P99 target.

    Each system's ``points`` must be sorted by load. The result leaves out systems that miss the
    target at their lowest load.
    """
    found: dict[str, float] = {}
    missed: set[str] = set()
    for point in points:
        if point.within < len(point.p99s_s):
            missed.add(point.system)
        elif point.system not in missed:
            found[point.system] = point.load
    return found


def table(points: Sequence[Point]) -> list[dict[str, str]]:
    """Return a row per system and load, with a comparison of the system to round-robin."""
    base = {point.load: point for point in points if point.system == ROUND_ROBIN}
    return [_row(point, base[point.load]) for point in points]


def _row(point: Point, base: Point) -> dict[str, str]:
    return {
        "router": f"`{point.system}`",
        "load": f"{point.load:.2f}",
        "mean, s": f"{fmean(point.means_s):.2f}",
        "P99, s": f"{fmean(point.p99s_s):.1f}",
        f"seeds with a P99 of at most {TARGET_S:g} s": f"{point.within} of {len(point.p99s_s)}",
        "mean: round-robin's / this": _gain(base.means_s, point.means_s),
        "P99: round-robin's / this": _gain(base.p99s_s, point.p99s_s),
    }


def _gain(base: Sequence[float], of: Sequence[float]) -> str:
    return f"{fmean(one / other for one, other in zip(base, of, strict=True)):.1f}x"


def _point(cell: SchedulerResults) -> Point:
    experiment = cell.runs[0].experiment
    rate = experiment["request_rate"] / experiment["dp"]
    both = [_latencies(one.run, experiment) for one in cell.runs]
    means_s, p99s_s = zip(*both, strict=True)
    return Point(SYSTEMS[cell.combined["scheduler"]], rate, means_s, p99s_s)


def _latencies(run: StoredRun, experiment: Mapping[str, float]) -> tuple[float, float]:
    return latencies_of(read_tables(run).requests, experiment["warmup_s"])


def main() -> None:
    """Simulate the missing runs, write results/tables/knees.csv, and print each system's knee."""
    _, cells = completed_cells(str(TABLES / "knees.toml"))
    order = [*SYSTEMS.values()]
    points = sorted(map(_point, cells), key=lambda one: (order.index(one.system), one.load))
    write("knees", table(points))
    last = {point.system: point.load for point in points}
    for system, load in knees(points).items():
        more = " or more, the largest load of the sweep" if load == last[system] else ""
        sys.stdout.write(f"{system}: {load:.2f} programs/s of a client and GPU{more}\n")
