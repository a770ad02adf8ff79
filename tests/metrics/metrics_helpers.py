"""Small hand-written tables that name only the columns under test."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairbench.metrics.arrays import spread
from fairbench.metrics.records import FINISHED, Client, Facts, Programs, Requests, Service, Window
from fairbench.metrics.service import step_times
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.metrics.waiting import Backlog, Intervals

NAN = float("nan")

REQUEST = {
    "request_id": 0,
    "program_id": 0,
    "client": 0,
    "depth": 0,
    "worker": 0,
    "arrival_s": 0.0,
    "admitted_s": NAN,
    "first_token_s": NAN,
    "finish_s": NAN,
    "retracted_s": NAN,
    "readmitted_s": NAN,
    "input_tokens": 0,
    "cached_tokens": 0,
    "extend_tokens": 0,
    "output_tokens": 0,
    "max_new_tokens": 0,
    "retractions": 0,
    "recompute_tokens": 0,
    "status": FINISHED,
}
PROGRAM = {
    "program_id": 0,
    "client": 0,
    "arrival_s": 0.0,
    "finish_s": NAN,
    "requests": 1,
    "demand_requests": 1,
    "demand_input_tokens": 0,
    "demand_output_tokens": 0,
    "status": FINISHED,
}
ROW = {
    "worker": 0,
    "client": 0,
    "start_s": 0.0,
    "end_s": 1.0,
    "steps": 1,
    "step_growth_s": 0.0,
    "batch_size": 1,
    "context_tokens": 0,
    "input_tokens": 0,
    "extend_charged_tokens": 0,
    "extend_tokens": 0,
    "recompute_tokens": 0,
    "output_tokens": 0,
}


def _columns(defaults: dict[str, Any], rows: tuple[dict[str, Any], ...]) -> dict[str, list[Any]]:
    for row in rows:
        assert not row.keys() - defaults.keys()
    return {name: [row.get(name, value) for row in rows] for name, value in defaults.items()}


def requests(*rows: dict[str, Any]) -> Requests:
    return Requests.from_columns(_columns(REQUEST, rows))


def programs(*rows: dict[str, Any]) -> Programs:
    return Programs.from_columns(_columns(PROGRAM, rows))


def log(*rows: dict[str, Any]) -> Service:
    return Service.from_columns(_columns(ROW, rows))


def facts(clients: int = 2, misbehaving: int = 0, **changes: Any) -> Facts:
    """Return facts with one heavy client, window [0, 100), and one worker with 1,000 tokens."""
    made: dict[str, Any] = {
        "clients": tuple(Client(f"c{i}", i == misbehaving) for i in range(clients)),
        "window": Window(0.0, 100.0),
        "horizon_s": 100.0,
        "workers": 1,
        "pool_tokens": 1000,
    }
    return Facts(**(made | changes))


def step_ends(log, rows):
    """Return all steps of the rows: for each, the row and the time at which it ends."""
    place, number = spread(np.ones(len(rows), dtype=np.int64), log.steps[rows])
    row = rows[place]
    return row, step_times(log, row, number)


def summary_of(
    requests: Requests, programs: Programs, log: Service, facts: Facts
) -> dict[str, Any]:
    names = [client.name for client in facts.clients]
    return summarize(Tables(names, requests, programs, log), facts)


def backlog_of(backlog: Backlog, client: int) -> Intervals:
    """Return the intervals in which one client was backlogged."""
    low, high = np.searchsorted(backlog.client, [client, client + 1])
    return Intervals(backlog.start[low:high], backlog.end[low:high])
