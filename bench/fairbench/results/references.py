"""Stored minimum fair shares and throughput of bundled experiments under FCFS."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import resolve
from fairbench.config.spec import file_tables
from fairbench.errors import DataError, UsageError
from fairbench.results.experiments import Experiment, key_of, place_of
from fairbench.results.store import StoredRun

FILE = "references.csv"
SCHEDULER = "fcfs"
SHARES = ("min_entitlement_ratio", "min_share_60s", "min_share_10s")
THROUGHPUT = "service_rate_tok_s"
KEY_LENGTH = 16  # number of characters of a configuration's hash that are kept


class Reference(NamedTuple):
    """A scheduler, and the minimum fair shares and the throughput of a run under this scheduler."""

    scheduler: str
    values: Mapping[str, float | None]


def reference_of(summary: Mapping[str, Any]) -> Reference:
    """Return the values of a run's summary to which another run is compared."""
    keys = (*SHARES, THROUGHPUT)
    return Reference(str(summary["scheduler"]), {key: summary.get(key) for key in keys})


def reference_spec(
    spec: ExperimentSpec, scheduler: str, settings: Mapping[str, Any], *, single: bool
) -> ExperimentSpec:
    """Return the experiment with another scheduler and the given ``settings``.

    Raises UsageError if the scheduler is unknown, if the experiment uses real servers, or if the
    command does not report a single run (``single`` is False).
    """
    if spec.backend is not None or not single:
        raise UsageError(
            f"--reference {scheduler}: needs a single simulated run, without --json and "
            "--no-reference; `fairbench compare` compares schedulers over several seeds"
        )
    return resolve({"scheduler": scheduler}, settings, place_of(file_tables(spec)))


def place_key(experiment: Experiment) -> str:
    """Return the key of an experiment's workload, cluster and seed, without its scheduler."""
    return key_of(place_of(experiment))[:KEY_LENGTH]


def reference_for(run: StoredRun) -> Reference | None:
    """Return the stored minimum fair shares under FCFS for a run, or None if unknown."""
    from fairbench.results.comparison import experiment_of

    try:
        return stored_reference(experiment_of(run))
    except DataError:
        return None


def stored_reference(experiment: Experiment) -> Reference | None:
    """Return the minimum fair shares under FCFS that are stored for an experiment.

    Return None if the experiment itself uses FCFS, or if its minimum fair shares are not stored.
    """
    if experiment.get("scheduler") == SCHEDULER or "backend" in experiment:
        return None
    key = place_key(experiment)
    text = files("fairbench.results").joinpath(FILE).read_text(encoding="utf-8")
    rows = (row for row in csv.DictReader(text.splitlines()) if row["place"] == key)
    row = next(rows, None)
    if row is None:
        return None
    keys = (*SHARES, THROUGHPUT)
    return Reference(SCHEDULER, {key: float(row[key]) if row[key] else None for key in keys})
