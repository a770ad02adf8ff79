"""Stored measures of each seed, from which claims are judged without new simulations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fairbench_studies.kit.rows import Row
from fairbench_studies.vtc.extremes import Extremes
from fairbench_studies.vtc.store import Results, Seeds

GAP, BASIS, EXTREMES = "largest gap while both wait", "basis", "extremes of theorems"


def keep(seeds: Seeds) -> list[Row]:
    """Return the values by which the claims are judged, with one row per run, measure and seed."""
    return [row for seed, one in enumerate(seeds) for row in _rows(seed, one)]


def _rows(seed: int, one: Results) -> Iterator[Row]:
    values: dict[tuple[str, str], Any] = {}
    for name, of in ((BASIS, one.bases), (GAP, one.gaps), (EXTREMES, one.extremes)):
        values |= {(run, name): value for run, value in of.items()}
    for (run, name), value in sorted((values | one.known).items()):
        workload, _, variant = run.partition(" ")
        yield {
            "workload": workload,
            "variant": variant,
            "measure": name,
            "seed": str(seed),
            "value": json.dumps(value, separators=(",", ":")),
        }


def recall(rows: Sequence[Row]) -> list[Results]:
    """Rebuild each seed's results, except for the traces, from stored rows.

    Raises KeyError or ValueError if a row has a wrong form.
    """
    seeds: dict[int, Results] = {}
    for row in rows:
        one = seeds.setdefault(int(row["seed"]), Results({}, {}, {}, {}))
        run, name = f"{row['workload']} {row['variant']}", row["measure"]
        one.known[run, name] = json.loads(row["value"])
    return [_sorted(one) for _, one in sorted(seeds.items())]


def _sorted(one: Results) -> Results:
    """Return results whose gaps, bases and extremes come from ``one.known``."""
    gaps, bases, extremes = (
        {run: value for (run, name), value in one.known.items() if name == kind}
        for kind in (GAP, BASIS, EXTREMES)
    )
    return Results({}, gaps, bases, {run: Extremes(*of) for run, of in extremes.items()}, one.known)
