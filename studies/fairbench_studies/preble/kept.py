"""A file of each seed's latencies, by which claims are judged without new simulations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fairbench_studies.kit.rows import Row
from fairbench_studies.preble.experiments import PREBLE, Key
from fairbench_studies.preble.speed import GPUS
from fairbench_studies.preble.store import Latency, Results

# Rows with decisions per second have "speed" as ``figure`` and the number of the repetition as
# ``seed``.
SPEED = "speed"


def keep(results: Results) -> list[Row]:
    """Return a row per run and a row per measurement of the rate of routing decisions."""
    return [*_runs(results), *_speeds(results)]


def _runs(results: Results) -> Iterator[Row]:
    for key, of in results.runs.items():
        for seed, latency in enumerate(of):
            yield _row(key, seed, results.basis, latency._asdict(), "")


def _speeds(results: Results) -> Iterator[Row]:
    for workload, speeds in results.speeds.items():
        for repetition, speed in enumerate(speeds):
            key = Key(SPEED, workload, PREBLE, float(GPUS))
            yield _row(key, repetition, "", dict.fromkeys(Latency._fields, ""), speed)


def _row(
    key: Key, seed: int, basis: str, latency: dict[str, float] | dict[str, str], speed: float | str
) -> Row:
    figures = {**latency, "decisions_per_s": speed}
    return {
        "workload": key.workload,
        "figure": key.figure,
        "system": key.system,
        "value": json.dumps(key.value),
        "seed": str(seed),
        **{name: "" if value == "" else json.dumps(value) for name, value in figures.items()},
        "basis": basis,
    }


def recall(rows: Sequence[Row]) -> Results:
    """Restore results from the rows that the function ``keep`` returned.

    Raises KeyError or ValueError if a row has a wrong form.
    """
    runs: dict[Key, list[Latency]] = {}
    speeds: dict[str, list[float]] = {}
    bases = dict.fromkeys(row["basis"] for row in rows if row["basis"])
    for row in rows:
        if row["figure"] == SPEED:
            speeds.setdefault(row["workload"], []).append(json.loads(row["decisions_per_s"]))
        else:
            key = Key(row["figure"], row["workload"], row["system"], json.loads(row["value"]))
            latency = Latency(*(json.loads(row[name]) for name in Latency._fields))
            runs.setdefault(key, []).append(latency)
    return Results(runs, speeds, "; ".join(bases))
