"""A stored run scored again from its tables, perhaps in another window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbench.config.resolve import read_spec
from fairbench.core import ServiceBound
from fairbench.errors import DataError
from fairbench.metrics.catalogue import forget, needing
from fairbench.metrics.metric import Needs
from fairbench.metrics.records import Requests, Window
from fairbench.metrics.summary import summarize
from fairbench.results.run_facts import cluster_bound, stored_facts
from fairbench.results.run_tables import read_tables
from fairbench.results.store import EXPERIMENT, SUMMARY, read_run
from fairbench.results.summary_schema import check_whole
from fairbench.schedulers.registry import build_local, build_router


def score_run(
    path: Path, start_s: float | None, end_s: float | None, percentiles: tuple[int, ...] = ()
) -> tuple[dict[str, Any], Requests]:
    """Return the summary of a run's directory in a window, and its requests.

    ``percentiles`` replace those that were chosen when the run was made, if any. A window's end of
    None is the stored one. Facts that the tables lack, such as the workload, keep their stored
    values. Raises DataError if the directory is not a run or its files were changed.
    """
    run = read_run(path)
    check_whole(run.summary, path / SUMMARY)
    tables, stored = read_tables(run), run.summary
    window = Window(
        stored["window_start_s"] if start_s is None else start_s,
        stored["window_end_s"] if end_s is None else end_s,
    )
    bound, reason = _bound(path, stored)
    scored = summarize(tables, stored_facts(run, window, bound, reason, percentiles))
    if not stored["simulated"]:
        _keep_what_was_measured(scored, stored)
    remarks = {
        key: why
        for key, why in stored["notes"].items()
        if (key not in scored and not key.startswith("clients."))
    }
    whole = {**stored, **scored, "notes": {**scored["notes"], **remarks}}
    return whole, tables.requests


def _bound(path: Path, stored: Mapping[str, Any]) -> tuple[ServiceBound | None, str]:
    """Return the theorem's bound for the run, or None with the reason.

    Raises DataError if the experiment is not that of the summary.
    """
    if stored["bound_source"] is None:
        return None, stored["notes"]["bound_source"]
    spec = read_spec(path / EXPERIMENT)
    said = {"workload": spec.workload.name, "scheduler": spec.scheduler, "router": spec.router}
    for key, value in {**said, "local": spec.local, "dp": spec.dp, "seed": spec.seed}.items():
        if value != stored[key]:
            raise DataError(
                f"{path / EXPERIMENT}: {key} = {value!r}: must be {stored[key]!r}, as in {SUMMARY}"
            )
    router = build_router(spec.router, spec.settings, spec.dp)
    return cluster_bound(router, build_local(spec.local, spec.settings), spec.dp)


def _keep_what_was_measured(scored: dict[str, Any], stored: Mapping[str, Any]) -> None:
    """Keep stored values that the tables cannot give: token gaps and queueing."""
    for key in [key for key in scored if key.endswith("_itl_ms")]:
        scored[key] = stored[key]
        scored["notes"].pop(key, None)
    for key in dict.fromkeys([*needing(Needs.ADMISSION), *needing(Needs.CACHED)]):
        if stored.get(key, 0) is None and key in stored["notes"]:
            forget(scored, [key], stored["notes"][key])
