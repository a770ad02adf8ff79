"""Fair-finish compared with rivals under changed settings, and with variants that lack one part.

    fairbench sweep results/tables/frontier-robustness.toml
    python studies frontier-robustness results/runs/frontier-robustness

The script writes a row per configuration to results/frontier-robustness.csv, and two tables. For
each measure, the tables have the factor by which fair-finish is better, as a geometric mean over
all configurations:

- results/tables/frontier-robustness.csv has the factor by which fair-finish is better than each
  rival in each measure, for each value of a varied setting.
- results/tables/frontier-levers.csv has, for each measure, the factor by which the complete
  fair-finish is better than fair-finish without one of its parts.

If runs are missing, the tables are incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from fairbench.config import identity
from fairbench.config.spec import ExperimentSpec
from fairbench.config.sweep import points, read_sweep
from fairbench.results.store import StoredRun, SweepStore
from fairbench_studies.frontier.compare import Outcomes, gain
from fairbench_studies.frontier.frozen import PUBLISHED, Cell, Configuration, frozen
from fairbench_studies.frontier.measures import Outcome
from fairbench_studies.frontier.outcomes import outcomes
from fairbench_studies.frontier.runs import Point
from fairbench_studies.kit.rows import ROOT, write_rows

SWEEP = ROOT / "results/tables/frontier-robustness.toml"
RUNS = ROOT / "results/frontier-robustness.csv"
AXES = SWEEP.with_suffix(".csv")
LEVERS = SWEEP.with_name("frontier-levers.csv")
DEFAULT, CAPPED = "default", "capped as it is"
RIVALS = ("d2lpm", "preble-dlpm", "preble")
EVERYWHERE = ("tot s1", "judge s1", "long-qa s2")  # configurations of the ablation runs
SHOWN = {"to_90_s": "90%", "p95_s": "P95", "service_tok_s": "service"}
KEPT = ("to_90_s", "to_100_s", "p95_s", "served", "service_tok_s", "output_tok_s")

Tagged = Mapping[str, Outcomes]


def ours() -> Configuration:
    """Return the configuration of fair-finish in its published form."""
    return Configuration(frozen().ours, PUBLISHED)


def found(folder: Path) -> Tagged:
    """Return the results of a folder of runs, keyed by tag: a varied setting and its value."""
    stored = SweepStore(Path(folder)).finished()
    by_tag: dict[str, dict[Point, StoredRun]] = {}
    for spec in points(read_sweep(str(SWEEP))):
        if (run := stored.get(identity(spec))) is not None:
            by_tag.setdefault(spec.tag or "", {})[_point(spec)] = run
    return {tag: outcomes(runs) for tag, runs in by_tag.items()}


def _point(spec: ExperimentSpec) -> Point:
    cell = Cell(part="test", workload=spec.workload.name, scenario=spec.scenario, seeds=(0,))
    return Point(cell, Configuration(spec.scheduler, PUBLISHED), spec.seed)


def factors(pairs: Sequence[tuple[Outcome, Outcome]]) -> str:
    """Return the factors by which the first outcomes of pairs beat the second outcomes, as text.

    The text has a factor for each measure: the geometric mean of the factors of all ``pairs``.
    """
    means = [exp(fmean(gain(m, one.mean(m), other.mean(m)) for one, other in pairs)) for m in SHOWN]
    return " / ".join(f"{mean:.2f}" for mean in means)


def axis_rows(tagged: Tagged) -> Iterable[dict[str, str]]:
    """Yield a table row for each changed setting with which fair-finish's rivals have runs."""
    for tag, cells in tagged.items():
        pairs = {rival: _pairs(cells, Configuration(rival, PUBLISHED)) for rival in RIVALS}
        if any(pairs.values()):
            yield {"away from the default": tag, "configurations": str(len(cells))} | {
                rival: factors(of) for rival, of in pairs.items() if of
            }


def _pairs(cells: Outcomes, rival: Configuration) -> list[tuple[Outcome, Outcome]]:
    return [
        (here[ours()], here[rival]) for here in cells.values() if ours() in here and rival in here
    ]


def lever_rows(tagged: Tagged) -> Iterable[dict[str, str]]:
    """Yield, for each part of fair-finish, the factors by which this part improves the measures."""
    for tag, cells in tagged.items():
        form, _, lever = tag.partition(" ")
        if form not in ("published", "capped") or tag == CAPPED:
            continue
        whole = tagged.get(DEFAULT if form == "published" else CAPPED, {})
        pairs = [
            (whole[cell][ours()], without)
            for cell, here in cells.items()
            # ``without`` holds a result of fair-finish with one part of the scheduler switched off.
            for without in here.values()
            if str(cell) in EVERYWHERE and ours() in whole.get(cell, {})
        ]
        if not pairs:
            continue
        row = {"form": form, "lever": lever}
        yield row | dict(zip(SHOWN.values(), factors(pairs).split(" / "), strict=True))


def run_rows(tagged: Tagged) -> Iterable[dict[str, Any]]:
    """Yield a row per tag (varied setting and value), configuration and scheduler pair."""
    for tag, cells in tagged.items():
        for cell, here in cells.items():
            for configuration, outcome in here.items():
                means = {name: f"{outcome.mean(name):.5g}" for name in KEPT}
                place = {"tag": tag, "cell": str(cell), "scheduler": configuration.pair}
                yield place | {"seeds": len(outcome.runs)} | means


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = dict.fromkeys((name for row in rows for name in row), "-")
    write_rows(path, [{**columns, **row} for row in rows])


def main(folder: str) -> None:
    """Write the files ``RUNS``, ``AXES`` and ``LEVERS`` from the runs in ``folder``."""
    tagged = found(Path(folder))
    _write(RUNS, list(run_rows(tagged)))
    _write(AXES, list(axis_rows(tagged)))
    _write(LEVERS, list(lever_rows(tagged)))
