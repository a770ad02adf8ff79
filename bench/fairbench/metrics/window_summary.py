"""Fairness over time in a run's summary: the worst windows, and shares while backlogged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.catalogue import CLIENTS
from fairbench.metrics.fairness import Shares
from fairbench.metrics.fairness_over_time import (
    WINDOWS_S,
    WorstWindow,
    backlogged_shares,
    least_by_client,
    timeline,
    worst_window,
)
from fairbench.metrics.notes import Notes
from fairbench.metrics.reasons import TOO_FEW_REQUESTS
from fairbench.metrics.records import Facts, Floats, Programs, Requests
from fairbench.metrics.service_log import ServiceLog

BACKLOGGED = "backlogged_share"


class OverTime(NamedTuple):
    """Metrics of the run and of each client by JSON key, and rows of ``worst_windows``."""

    run: Mapping[str, float]
    clients: tuple[Mapping[str, float], ...]
    rows: list[dict[str, Any]]


def over_time(
    requests: Requests,
    programs: Programs,
    log: ServiceLog,
    facts: Facts,
    got: Shares,
    notes: Notes,
) -> OverTime:
    """Return fairness over time in the window of ``got``; undefined without a shortage.

    Args:
        requests: Table of the run's requests.
        programs: Table of the run's programs.
        log: The run's service log.
        facts: Facts about the run that the tables do not contain.
        got: Service and fair share of each client in the window.
        notes: Notes of the summary under construction, to which new ones are added.
    """
    clients = len(facts.clients)
    why = got.not_judged or TOO_FEW_REQUESTS
    columns = dict.fromkeys((*map(key_of, WINDOWS_S), BACKLOGGED), np.full(clients, np.nan))
    rows: list[dict[str, Any]] = []
    if clients and got.window.length_s and got.contended:
        line = timeline(requests, programs, log, facts, got.window)
        columns = {key_of(length_s): least_by_client(line, length_s) for length_s in WINDOWS_S}
        columns[BACKLOGGED] = backlogged_shares(line)
        found = [worst_window(line, length_s) for length_s in WINDOWS_S]
        rows = [_row(one, facts) for one in found if one]
    run = {f"min_{key}": _least(column) for key, column in columns.items()}
    return OverTime(
        {key: notes.value(key, value, why) for key, value in run.items()},
        tuple(
            {
                key: notes.value(f"{CLIENTS}{client.name}.{key}", float(column[index]), why)
                for key, column in columns.items()
            }
            for index, client in enumerate(facts.clients)
        ),
        rows,
    )


def key_of(length_s: float) -> str:
    """Return the JSON key of a client's share in its worst window of this length."""
    return f"share_{length_s:.0f}s"


def _row(worst: WorstWindow, facts: Facts) -> dict[str, Any]:
    """Return a worst window with the names of its clients."""
    return {
        "start_s": worst.start_s,
        "end_s": worst.end_s,
        "share": worst.share,
        "client": facts.clients[worst.client].name,
        "heavy_client": facts.clients[worst.heavy].name if worst.heavy >= 0 else None,
    }


def _least(column: Floats) -> float:
    """Return the least number of a column, NaN if it has none."""
    known = column[~np.isnan(column)]
    return float(known.min()) if len(known) else float("nan")
